package service

import (
	"sync"
	"time"

	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/base"
)

// maxHolders is how many of those who hold memory status and metrics name.
const maxHolders = 8

// holderName begins the name of what one of them holds.
const holderName = "memory of "

// datedRefusals is when budgets refused something last, as nearly as they were looked at: what refuses counts, and
// reads no clock for that.
type datedRefusals struct {
	mu   sync.Mutex
	last map[string]datedRefusal // guarded by mu; by name
}

type datedRefusal struct {
	n  uint64 // so many by then
	at time.Time
}

// date says in the budgets how long ago they refused something.
func (d *datedRefusals) date(list []base.Budget, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last == nil {
		d.last = map[string]datedRefusal{}
	}
	for i := range list {
		b := &list[i]
		if b.Refused > d.last[b.Name].n {
			d.last[b.Name] = datedRefusal{b.Refused, now}
		}
		if b.Refused > 0 {
			b.RefusedAgo = max(now.Sub(d.last[b.Name].at), 1)
		}
	}
}

// memoryNames are the names of the budgets of each kind.
var memoryNames = func() (l [quota.NumKinds]string) {
	for k := range l {
		l[k] = "memory_" + quota.Kind(k).String()
	}
	return l
}()

// memoryBudgets appends what the node's memory is held for.
func (f *Front) memoryBudgets(l []base.Budget, now time.Time) []base.Budget {
	b, n := f.deps.Budget, len(l)
	l = append(l,
		base.Budget{Name: "memory_sending", Used: uint64(max(b.Sending(), 0)), Limit: uint64(b.Limit - b.Limit/4), Refused: b.RefusedSending()},
		base.Budget{Name: "memory_received", Used: uint64(max(b.Held(), 0)), Limit: uint64(b.Limit), Refused: b.RefusedHeld()})
	for k, u := range f.deps.Memory.Kinds() {
		l = append(l, base.Budget{Name: memoryNames[k], Used: uint64(max(u.Used, 0)), Limit: uint64(u.Limit), Refused: u.Refused})
	}
	f.refusedAt.date(l[n:], now)
	return l
}

// memoryHolders is who holds most of it, datagrams apart.
func (f *Front) memoryHolders() []base.Budget {
	var l []base.Budget
	for _, h := range f.deps.Memory.Holders() {
		if h.Used <= 0 || len(l) == maxHolders {
			break
		}
		l = append(l, base.Budget{Name: holderName + h.Holder.String(), Used: uint64(h.Used), Limit: uint64(f.deps.Memory.Limit())})
	}
	return l
}

// snapshot looks at the whole node: the core and the front ends' own limits.
func (f *Front) snapshot(s *snapshot) {
	f.deps.Read(&s.Snapshot)
	s.Budgets = append(s.Budgets, f.deps.Clients.Budget(), f.deps.Users.Budget(), f.deps.FDs.Budget())
	s.Budgets = f.memoryBudgets(s.Budgets, time.Now())
	s.holders = f.memoryHolders()
	s.Budgets = append(s.Budgets, f.volumeBudgets()...)
	s.rings, s.ringB = f.deps.Clients.Memory()
	t := f.deps.Clients.Felt()
	s.Counters.CongSendError += t.Refused
	s.Counters.CongSendBlocked += t.Waited
	s.Counters.SendQueueFull += t.Full
	s.sockets, s.clients = int(f.deps.Clients.Budget().Used), f.deps.Users.Len()
}
