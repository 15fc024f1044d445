// Package demo is `rdsd demo`: two nodes in this process, applications on both
// that talk through sdk/go and the real wire, and a play of what can go wrong.
//
// Run owns everything: the two nodes, one goroutine for each sender, reader and
// watcher, and the teller, the only one that writes. All end before it returns.
//
// Read first: demo.go, flow.go, play.go.
package demo
