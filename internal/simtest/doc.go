// Package simtest runs whole nodes in a simulated world: engines of package
// rds in the daemon's own shell (node/datagram), on simulated machines over the
// network of transport/sim, models of Linux peers beside them,
// applications that send, read, cancel, close and rebind, and a schedule of
// faults. Everything is drawn from one seed, so a seed replays.
//
// After every event the world is compared with a small model of what RDS
// promises (D1 to D12): each datagram carries its flow and number, the model
// knows what was accepted, what was seen on the wire, what was placed, and
// what the sender was told.
//
// Worlds of high seeds have volumes too (volumes.go): sessions of RTRS and RNBD
// over one-sided links in the same network, stores that fail, and a model of
// every sector (volmodel.go), for B1 to B7.
//
// Those of still higher seeds have paths over RoCE beside those over TCP: the daemon's devices
// (transport/ib/soft) on a network of datagrams (voldevice.go, volrdma.go).
//
// Both shells are the product's: node/datagram for datagrams, node/volume for volumes, with
// its sessions, mappings, exports and state. Its goroutines are tasks (voltask.go), one of
// which runs at a time; a step that waits fails the run.
//
// Read world.go (one run), model.go (what is checked), node.go (a machine), then
// thread.go and link.go, which stand for its reactor and its TCP; volnode.go and volnet.go,
// which do so for volumes, and volclient.go and volapp.go, who uses them;
// kernel.go is a peer written from the facts about Linux, not from conn.
package simtest
