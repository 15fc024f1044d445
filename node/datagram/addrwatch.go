package datagram

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/netlocal"
)

// addrNews tells of addresses that leave this machine; all: any may have.
type addrNews interface {
	Next() (gone []netip.Addr, all bool, err error)
	Close() error
}

// rewatch is how long the kernel has rest that would not tell, at first. Where each watch fails soon
// the rest grows to mostRewatch times that: each end of a watch makes unknown what is unacknowledged.
const (
	rewatch     = time.Second
	mostRewatch = 64
)

// watchAddrs ends the life of an address that leaves this machine while the daemon
// runs. Another node may use it from then on, number from 1 and go again; when it
// came back, what this one sent again with its old numbers would be dropped as old
// by a kernel, and acknowledged by its TCP.
func (a *Host) watchAddrs() {
	open := func() (addrNews, error) { return netlocal.WatchAddrs() }
	w, err := open() // before there is anything to lose
	a.watching.Add(1)
	go func() { // ends with ctx
		defer a.watching.Done()
		defer a.deps.Guard.Recover(guard.Step, nil) // nothing would be noticed any more
		a.followAddrs(w, err, open, rewatch)
	}()
}

// followAddrs takes what w tells, or another watch once it fails; err says that w could not be
// opened. What happens while there is none nobody tells later: any address may have left.
func (a *Host) followAddrs(w addrNews, err error, open func() (addrNews, error), least time.Duration) {
	pause := least
	for {
		if err == nil {
			began := time.Now()
			if err = a.follow(w); time.Since(began) > mostRewatch*least {
				pause = least
			}
		}
		if a.ctx.Err() != nil {
			return
		}
		a.deps.Log.Warn("the loss of an address is not noticed for the moment", "error", err, "again", pause)
		for rest := pause; err != nil; rest = least {
			select {
			case <-time.After(rest):
			case <-a.ctx.Done():
				return
			}
			w, err = open()
		}
		pause = min(2*pause, mostRewatch*least)
		a.lostAddresses(nil, true)
	}
}

// follow takes what w tells until it fails, or ctx ends.
func (a *Host) follow(w addrNews) error {
	defer w.Close()
	stop := context.AfterFunc(a.ctx, func() {
		defer a.deps.Guard.Recover(guard.Step, nil)
		w.Close()
	})
	defer stop()
	for {
		gone, all, err := w.Next()
		if err != nil {
			return err
		}
		a.lostAddresses(gone, all)
	}
}

func (a *Host) lostAddresses(gone []netip.Addr, all bool) {
	for _, h := range a.list {
		if !h.addr.IsLoopback() && (all || slices.Contains(gone, h.addr)) {
			h.lostAddress(all)
		}
	}
}

func (h *Local) lostAddress(perhaps bool) {
	h.log.Warn("the address was taken from this machine: what is unacknowledged is unknown", "address", h.addr, "perhaps", perhaps)
	e, now := h.Lock()
	e.AddressLost(now)
	h.Unlock()
}
