package node

import "github.com/rdsd/rdsd/node/base"

// maxHolders is how many of those who hold memory status and metrics name.
const maxHolders = 8

// memoryBudgets is what the node's memory is held for.
func (n *Node) memoryBudgets() []base.Budget {
	b := n.deps.Budget
	l := []base.Budget{
		{Name: "memory_sending", Used: uint64(max(b.Sending(), 0)), Limit: uint64(b.Limit - b.Limit/4), Refused: b.Refused.Load()},
		{Name: "memory_received", Used: uint64(max(b.Held(), 0)), Limit: uint64(b.Limit)},
	}
	for _, u := range n.deps.Memory.Kinds() {
		l = append(l, base.Budget{Name: "memory_" + u.Kind.String(), Used: uint64(max(u.Used, 0)), Limit: uint64(u.Limit), Refused: u.Refused})
	}
	return l
}

// memoryHolders is who holds most of it, datagrams apart.
func (n *Node) memoryHolders() []base.Budget {
	var l []base.Budget
	for _, h := range n.deps.Memory.Holders() {
		if h.Used <= 0 || len(l) == maxHolders {
			break
		}
		l = append(l, base.Budget{Name: "memory of " + h.Holder.String(), Used: uint64(h.Used), Limit: uint64(n.deps.Memory.Limit())})
	}
	return l
}
