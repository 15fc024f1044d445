// Package rnbd is RNBD, block devices over RTRS: a Server that opens what is
// exported and carries out the I/O of sessions, and a Client whose Volumes are
// devices of a server.
//
// No goroutine, no lock, no clock, no I/O. The caller has one lock for a
// Server, the one of its RTRS server, and one for each Client, that of its
// session. Every call is made with that lock held and told the time. What has
// to happen without it is handed out: after each call, and before the lock is
// let go for good, the caller empties Server.Next (what goes to the devices) or
// Client.Finished (what is complete), and carries that out with the lock
// released. The methods of an environment (ServerEnv, ClientEnv, Carrier) are
// called with the lock held, do not block and do not call back, with the one
// exception that Carrier.Send may call Client.Done.
//
// Which requests a device takes is decided in package blk alone (blk.Info.Check);
// who may open what, and how many may write, here, in export.go and arbiter.go.
//
// Read export.go (what is exported, to whom), server.go (requests), client.go
// and volume.go (the life of a mapped volume).
package rnbd
