// Package node is one running daemon: assembly and front ends. Its configuration
// is package config.
//
// config.Load or config.Default make a configuration, New checks what can be checked
// without side effects, Run serves until its context ends and then drains.
// Several nodes run in one process; the only thing they share is the buffer
// pool of grpc-go, set once in an init function.
//
// Locks, outermost first: sockStream.wmu (who writes to a client's stream),
// host.mu (the engine of one local address and everything in it, see lane.go for
// its links), sockStream.mu. Nothing blocks and no system call is made with
// host.mu held; what a step of the engine orders is carried out by host.unlock.
//
// Goroutines: the reactors (reactors.go), which read and write the links, run the
// timer of each host and whatever is handed to them; the log of path states;
// dials under way; and for each client stream its handler, its reader and its
// pusher. Each says at its go statement how it ends.
//
// Volumes are package node/volume; here are its service (volumes_api.go) and its
// metrics (metrics_volumes.go).
//
// Read node.go and grpc.go first; for the data path host.go,
// transmit.go, reactors.go and datagrams.go.
package node
