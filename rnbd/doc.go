// Package rnbd is RNBD, block devices over RTRS: a Server that opens exported volumes and
// carries out the I/O of sessions, and a Client whose Volumes are devices of a server.
//
// The package has no goroutine, lock, clock or I/O. The caller has one lock for a Server,
// the one of its RTRS server, and one for each Client, that of its session. Every call is
// made with that lock held and is given the time. Work that has to happen without the lock
// is handed out: after each call, and before the lock is released for good, the caller
// empties Server.Next (requests for the devices) or Client.Finished (complete requests),
// and carries that out with the lock released. The methods of an environment (ServerEnv,
// ClientEnv, Carrier) are called with the lock held, do not block and do not call back,
// with the one exception that Carrier.Send may call Client.Done.
//
// Which requests a device takes is decided in package blk alone (blk.Info.Check); which
// session may open which volume, and how many may write, is decided here, in export.go and
// arbiter.go.
//
// Read export.go (exports and their rules), server.go (requests), client.go and volume.go
// (the life of a mapped volume).
package rnbd
