// Package node is one running daemon: assembly and front ends. Its configuration
// is package config.
//
// config.Load or config.Default make a configuration, New checks what can be checked
// without side effects, Run serves until its context ends and then drains.
// Several nodes run in one process; the only thing they share is the buffer
// pool of grpc-go, set once in an init function.
//
// Locks, outermost first: sockStream.wmu (who writes to a client's stream), the lock
// of an address (package datagram), sockStream.mu. Nothing blocks and no system call is
// made with the lock of an address held.
//
// Goroutines: those of package datagram; and for each client stream its handler, its
// reader and its pusher. Each says at its go statement how it ends.
//
// Rooms: base is what all of them stand on, config what a node can be told, datagram
// and volume the two shells. Here are, besides, the service of volumes (volumes_api.go)
// and its metrics (metrics_volumes.go).
//
// Read node.go and grpc.go first; for the data path datagrams.go and rings.go.
package node
