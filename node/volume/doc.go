// Package volume is everything a daemon does with volumes: it exports files,
// block devices and memory to other nodes, maps volumes of other nodes, and
// gives what it mapped to programs of this node by NBD, over a Unix socket or as
// /dev/nbdN of the kernel. It is the shell of rtrs and rnbd: threads, locks,
// timers, sockets and files are here, the protocol is there.
//
// Host is the entry. Its methods may be called from any goroutine and check all
// they are given; what they return are copies.
package volume
