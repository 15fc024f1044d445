// Package rdserr holds the sentinel errors of rdsd, each with the errno the
// Linux RDS socket interface reports in the same situation.
//
// errors.Is matches an error of this package with its sentinel and with the
// bare syscall.Errno. Everybody calls it; it has no state.
package rdserr
