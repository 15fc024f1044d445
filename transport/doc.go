// Package transport is the contract between the connection manager and what
// moves bytes: frames in, batches of frames out, and the interfaces a link and
// its provider implement. It knows no protocol rule beyond the framing.
//
// The conformance suite every provider passes is transport/transporttest. Read
// batch.go (what is sent), frame.go (what is received), link.go (who calls whom).
package transport
