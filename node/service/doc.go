// Package service is what a node offers and shows: the services of its API over gRPC,
// the page for monitoring with metrics and health, and who may use them.
//
// Front is the room's door. It is given Deps, in which the other rooms are, and knows
// nothing of the node that puts them together: Datagrams are a stream of package client,
// Admin reads and changes engines (package datagram), VolumeService the volumes (package
// volume). Whoever connects is known by what the kernel says (peercred.go), counted and
// held to a pace (calls.go, pace.go), because what gRPC holds for a client is charged too.
//
// Metrics are read at scrape time; the data path knows nothing of them.
//
// Read grpc.go first, then admin.go and metrics.go.
package service
