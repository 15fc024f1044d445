// Package doctor says what a machine lacks for rdsd, and the command that mends it:
// `rdsd doctor`. Each check is a function of a Machine, which is this one (Here) or a
// test's own; none changes anything, and none asks a daemon. Of one that
// runs they look at the process: its limits, control group and environment are not this shell's.
//
// It has no state, goroutine or lock.
//
// Read first: doctor.go, net.go, machine.go.
package doctor
