// Package node is one running daemon: configuration, assembly and front ends.
//
// LoadConfig or DefaultConfig make a Config, New checks what can be checked
// without side effects, Run serves until its context ends and then drains.
// Several nodes run in one process; the only thing they share is the buffer
// pool of grpc-go, set once in an init function.
//
// Read config.go, node.go and grpc.go first.
package node
