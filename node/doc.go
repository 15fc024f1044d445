// Package node is one running daemon: assembly and front ends. Its configuration
// is package config.
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
// and volume the two shells, client what clients have. Here are, besides, the service of volumes (volumes_api.go)
// and its metrics (metrics_volumes.go).
//
// Read node.go and grpc.go first; for the data path package client.
package node
