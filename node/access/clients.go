package access

import (
	"sync"

	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdserr"
)

// Clients counts connections by user. Entries exist only for users with
// connections, so it is as large as limits.max_clients at most.
type Clients struct {
	max, maxPerUID int
	memory         *quota.Node
	refused        func(config.Identity, error) // called without the lock
	Room           func(config.Identity) error  // whether the process has descriptors for one more; may be nil

	mu     sync.Mutex
	total  int            // guarded by mu
	byUser map[uint32]int // guarded by mu
	denied uint64         // guarded by mu
}

// NewClients makes a table of at most max connections, maxPerUID of one user. refused, unless
// nil, hears of each that there was no room for.
func NewClients(max, maxPerUID int, memory *quota.Node, refused func(config.Identity, error)) *Clients {
	return &Clients{max: max, maxPerUID: maxPerUID, memory: memory, refused: refused, byUser: map[uint32]int{}}
}

// Len is how many connections there are.
func (t *Clients) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total
}

// Budget is what of the limit is used.
func (t *Clients) Budget() base.Budget {
	t.mu.Lock()
	defer t.mu.Unlock()
	return base.Budget{Name: "clients", Used: uint64(t.total), Limit: uint64(t.max), Refused: t.denied}
}

// Add counts a connection that takes size bytes of its user's account, which
// Remove closes.
func (t *Clients) Add(id config.Identity, size int64) (*quota.Account, error) {
	account := t.memory.Account(quota.User(id.UID))
	var full error
	if t.Room != nil {
		full = t.Room(id)
	}
	t.mu.Lock()
	err := account.Take(quota.Clients, size)
	took := err == nil
	switch {
	case !took:
	case full != nil:
		err = full
	case t.total >= t.max:
		err = rdserr.With(rdserr.ErrTooMany, "limits.max_clients (%d) connections are open", t.max)
	case t.byUser[id.UID] >= t.maxPerUID:
		err = rdserr.With(rdserr.ErrTooMany, "uid %d has limits.max_clients_per_uid (%d) connections open", id.UID, t.maxPerUID)
	default:
		t.total++
		t.byUser[id.UID]++
	}
	if err != nil {
		t.denied++
	}
	t.mu.Unlock()
	if err == nil {
		return account, nil
	}
	if took {
		account.Give(quota.Clients, size)
	}
	account.Close()
	if t.refused != nil {
		t.refused(id, err)
	}
	return nil, err
}

// Remove ends what Add began.
func (t *Clients) Remove(id config.Identity, account *quota.Account, size int64) {
	account.Give(quota.Clients, size)
	account.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total--
	if t.byUser[id.UID]--; t.byUser[id.UID] == 0 {
		delete(t.byUser, id.UID)
	}
}

// SetMax changes the limits; whoever is there stays.
func (t *Clients) SetMax(most, perUID int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.max, t.maxPerUID = most, perUID
}
