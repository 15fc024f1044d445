// Package accept is the one loop in which connections are accepted. Accepting fails for
// reasons that pass: no descriptor is free, no memory, a connection that ended before it
// was taken. None of them ends the loop, because its server would then be deaf until the
// process is started again. Only the end of the listener ends it.
//
// Where no descriptor is free, a reserve is given up for a moment: the connection is
// accepted and told why it ends, instead of waiting in the kernel in vain.
//
// Goroutines: one of a listener at most, which closes the connection that was refused. Locks:
// Reserve.mu, held for system calls that do not wait, and for refuseTime at most.
package accept
