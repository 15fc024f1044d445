// Package netlocal asks the kernel what it knows of this machine's network:
// whose socket the other end of a connection is, and which addresses are the
// machine's own.
//
// It speaks netlink, in the network namespace of its caller. Every question
// takes a socket of its own, some tens of microseconds, and at most answerTime;
// no question is to be asked on a reactor's thread.
//
// It starts no goroutine and holds no lock. Read owner.go, addr.go, ask.go.
package netlocal
