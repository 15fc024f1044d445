package node

import (
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/config"
)

// maxHolders is how many of those who hold memory status and metrics name.
const maxHolders = 8

// memoryBudgets is what the node's memory is held for.
func (n *Node) memoryBudgets() []budget {
	b := n.budget
	l := []budget{
		{"memory_sending", uint64(max(b.Sending(), 0)), uint64(b.Limit - b.Limit/4), b.Refused.Load()},
		{"memory_received", uint64(max(b.Held(), 0)), uint64(b.Limit), 0},
	}
	for _, u := range n.memory.Kinds() {
		l = append(l, budget{"memory_" + u.Kind.String(), uint64(max(u.Used, 0)), uint64(u.Limit), u.Refused})
	}
	return l
}

// memoryHolders is who holds most of it, datagrams apart.
func (n *Node) memoryHolders() []budget {
	var l []budget
	for _, h := range n.memory.Holders() {
		if h.Used <= 0 || len(l) == maxHolders {
			break
		}
		l = append(l, budget{"memory of " + h.Holder.String(), uint64(h.Used), uint64(n.memory.Limit()), 0})
	}
	return l
}

// user is the account of a client's user; Close must follow.
func (n *Node) user(id config.Identity) *quota.Account { return n.memory.Account(quota.User(id.UID)) }
