package datagram

import (
	"slices"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/netlocal"
)

// watchAddrs ends the life of an address that leaves this machine while the daemon
// runs. Another node may use it from then on, number from 1 and go again; when it
// came back, what this one sent again with its old numbers would be dropped as old
// by a kernel, and acknowledged by its TCP.
func (a *Host) watchAddrs() {
	w, err := netlocal.WatchAddrs()
	if err != nil {
		a.deps.Log.Warn("the loss of an address will not be noticed", "error", err)
		return
	}
	a.addrs = w
	a.watching.Add(1)
	go func() { // ends when close closes w
		defer a.watching.Done()
		defer a.deps.Guard.Recover(guard.Step, nil) // nothing would be noticed any more
		for {
			gone, all, err := w.Next()
			if err != nil {
				return
			}
			for _, h := range a.list {
				if !h.addr.IsLoopback() && (all || slices.Contains(gone, h.addr)) {
					h.lostAddress(all)
				}
			}
		}
	}()
}

func (h *Local) lostAddress(perhaps bool) {
	h.log.Warn("the address was taken from this machine: what is unacknowledged is unknown", "address", h.addr, "perhaps", perhaps)
	e, now := h.Lock()
	e.AddressLost(now)
	h.Unlock()
}

// unwatch ends watchAddrs.
func (a *Host) unwatch() {
	if a.addrs != nil {
		a.addrs.Close()
		a.watching.Wait()
	}
}
