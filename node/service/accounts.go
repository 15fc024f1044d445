package service

import "github.com/rdsd/rdsd/node/base"

// maxHolders is how many of those who hold memory status and metrics name.
const maxHolders = 8

// memoryBudgets is what the node's memory is held for.
func (f *Front) memoryBudgets() []base.Budget {
	b := f.deps.Budget
	l := []base.Budget{
		{Name: "memory_sending", Used: uint64(max(b.Sending(), 0)), Limit: uint64(b.Limit - b.Limit/4), Refused: b.Refused.Load()},
		{Name: "memory_received", Used: uint64(max(b.Held(), 0)), Limit: uint64(b.Limit)},
	}
	for _, u := range f.deps.Memory.Kinds() {
		l = append(l, base.Budget{Name: "memory_" + u.Kind.String(), Used: uint64(max(u.Used, 0)), Limit: uint64(u.Limit), Refused: u.Refused})
	}
	return l
}

// memoryHolders is who holds most of it, datagrams apart.
func (f *Front) memoryHolders() []base.Budget {
	var l []base.Budget
	for _, h := range f.deps.Memory.Holders() {
		if h.Used <= 0 || len(l) == maxHolders {
			break
		}
		l = append(l, base.Budget{Name: "memory of " + h.Holder.String(), Used: uint64(h.Used), Limit: uint64(f.deps.Memory.Limit())})
	}
	return l
}

// snapshot looks at the whole node: the core and the front ends' own limits.
func (f *Front) snapshot(s *snapshot) {
	f.deps.Read(&s.Snapshot)
	s.Budgets = append(s.Budgets, f.deps.Clients.Budget(), f.deps.Users.Budget(), f.deps.FDs.Budget())
	s.Budgets = append(s.Budgets, f.memoryBudgets()...)
	s.holders = f.memoryHolders()
	s.Budgets = append(s.Budgets, f.volumeBudgets()...)
	s.rings, s.ringB = f.deps.Clients.Memory()
	t := f.deps.Clients.Felt()
	s.Counters.CongSendError += t.Refused
	s.Counters.CongSendBlocked += t.Waited
	s.Counters.SendQueueFull += t.Full
	s.sockets, s.clients = int(f.deps.Clients.Budget().Used), f.deps.Users.Len()
}
