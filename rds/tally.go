package rds

import "github.com/rdsd/rdsd/internal/quota"

// tally counts what an engine's step has taken of the node's Budget, and of one account,
// and has not yet told others. Most steps move many datagrams of one user: telling each by
// itself cost eight atomic operations a datagram, a seventh of its way through the core.
// Questions within the step count the tally in; other engines of the node learn of it when
// the step ends. They could always ask between our question and our taking.
type tally struct {
	sending, held int64
	account       *quota.Account
	noted         int64 // of account
}

// turn goes over to account a: the one before is told what was noted for it.
func (t *tally) turn(a *quota.Account) {
	t.account.Hold(t.noted)
	t.account, t.noted = a, 0
}

// fits reports whether n bytes more are within a's share of the memory, of which free bytes
// are free.
func (t *tally) fits(a *quota.Account, n int, free int64) bool {
	mine := t.noted
	if t.account != a {
		mine = 0
	}
	return a.Fits(int64(n), mine, free)
}

// room returns how many bytes are free: so many the budget has for received datagrams.
func (e *Engine) room() int64 {
	b, t := e.cfg.Budget, &e.tally
	free := b.Limit - b.sending.Load() - b.held.Load() - t.sending - t.held
	if b.Rest != nil {
		free -= b.Rest.Load()
	}
	return free
}

// sendRoom is how many bytes more may be accepted, of the free ones.
func (e *Engine) sendRoom(free int64) int {
	b := e.cfg.Budget
	return int(min(b.Limit-b.Limit/4-b.sending.Load()-e.tally.sending, free))
}
