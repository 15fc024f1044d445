// Package demo is `rdsd demo`: two nodes in this process, applications on both
// that talk through sdk/go and the real wire, or keep what they have on a volume of
// the other node, and a play of what can go wrong.
//
// Run owns everything: the two nodes, one goroutine for each sender, reader, writer
// of the volume and watcher, and the teller, the only one that writes. All end before it returns.
//
// Read first: demo.go, flow.go, disk.go, play.go.
package demo
