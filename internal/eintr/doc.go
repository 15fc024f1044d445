// Package eintr repeats system calls that a signal has interrupted.
package eintr
