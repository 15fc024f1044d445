// Package access is who the clients of a node are, how many of them there may be, how
// often one may call and how much of its runs at a time: what has to be known of a
// connection before anything is done for it, whether it speaks gRPC or the control
// protocol of rings.
//
// Read identity.go and clients.go first.
package access
