// Package load is the load generator behind `rdsd stress`: tasks that send
// datagrams through sdk/go, a responder that checks and answers them, and
// latencies in an HDR histogram.
//
// Each task has two goroutines, one sends, one takes answers; a responder has
// one. All end with their context; Run and Respond wait for them.
//
// Read first: load.go, task.go, responder.go.
package load
