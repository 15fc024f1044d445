// Package node is one running daemon: configuration, assembly and front ends.
//
// LoadConfig or DefaultConfig make a Config, New checks what can be checked
// without side effects, Run serves until its context ends and then drains.
// Several nodes run in one process; the only thing they share is the buffer
// pool of grpc-go, set once in an init function.
//
// Locks, outermost first: sockStream.wmu (who writes to a client's stream),
// host.mu (the engine of one local address and everything in it, see lane.go for
// its links), sockStream.mu. Nothing blocks and no system call is made with
// host.mu held; what a step of the engine orders is carried out by host.unlock.
//
// Goroutines: the timer and the flusher of each host, one reader for each link
// (transport/tcp), dials under way, and for each client stream its handler, its
// reader and its pusher. Each says at its go statement how it ends.
//
// Read config.go, node.go and grpc.go first; for the data path host.go,
// transmit.go and datagrams.go.
package node
