// Package shm is shared memory between the daemon and the applications of its
// node: the layout of docs/shm.md, and both ends of it.
//
// It has no goroutines and no locks: the owner of an end calls it with a lock of its own.
// The other side of a region may be hostile: its values are read once, checked, then used.
//
// Read layout.go and desc.go (the bytes), region.go (the mapping), host.go (the daemon's end) and
// pages.go (who pays for its memory), client.go (the client's), then ledger.go and recover.go
// (the state that outlives the daemon). arena.go divides memory, control.go carries messages and
// descriptors, doorbell.go wakes.
package shm
