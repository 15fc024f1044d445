// Package netlocal asks the kernel about this machine's network: which process has the
// other end of a connection, and which addresses are the machine's own.
//
// It speaks netlink, in the network namespace of its caller. Every question takes a socket
// of its own, some tens of microseconds, and at most answerTime; a reactor's thread must
// not ask any.
//
// It starts no goroutine and holds no lock. Read owner.go, addr.go, ask.go.
package netlocal
