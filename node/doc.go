// Package node is one running daemon: its assembly and its life.
//
// config.Load or config.Default make a configuration, New checks what can be checked
// without side effects, Run serves until its context ends and then drains.
// Several nodes run in one process; the only thing they share is the buffer
// pool of grpc-go, set once in an init function.
//
// Nothing blocks and no system call is made with the lock of an address (package
// datagram) held. Each goroutine says at its go statement how it ends.
//
// Rooms: base is what all of them stand on, config what a node can be told, datagram
// and volume the two shells, access who clients are, client what they have, service the
// API, the page and the metrics. Each is given what it needs, and none knows this package.
//
// Read node.go first; for the data path package client.
package node
