// Package blk defines a block device for the rest of rdsd: requests go in in batches,
// complete in any order, in batches, by a call. A file, a block device, memory, a remote
// volume and a layer that injects faults are all one Device, and everything that serves one
// (the RNBD server, the NBD export) serves any of them.
//
// The package promises B1, B5, B7 and B8 (docs/testing.md): a request that is out of range,
// misaligned, too large or not allowed gets an error and does nothing (Info.Check, the only
// place where this is decided); an error of the store goes to the request concerned; after
// a failed sync no later flush and no FUA request succeeds until the device is opened
// again; a successful read has filled its whole buffer.
//
// Goroutines: a File starts workers when requests wait and bounds their number;
// they end when nothing waits. A Fault has one timer for each request it
// delays. Everything else runs in the caller's goroutine. Locks: each type has
// its own, listed at its fields; none is held while a completion is delivered.
//
// Read device.go (the contract), info.go (the checks), file_submit.go (the device that
// matters most). The suite every device passes is blk/blktest.
package blk
