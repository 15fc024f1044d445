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
func (e *Engine) fits(a *quota.Account, n int, free int64) bool {
	// Whoever holds no more than is free has not passed his share (quota.Account.Fits), and while
	// half of the memory is free nobody holds more.
	if free-int64(n) >= e.cfg.Budget.Limit/2 {
		return true
	}
	mine := int64(0)
	if e.tally.account == a {
		mine = e.tally.noted
	}
	return a.Fits(int64(n), mine, free)
}

// room returns how many bytes are free, so many the budget has for received datagrams, and how
// many of them more may be accepted for sending.
func (e *Engine) room() (free int64, toSend int) {
	b, t := e.cfg.Budget, &e.tally
	sending := b.sending.Load() + t.sending
	free = b.Limit - sending - b.held.Load() - t.held
	if b.Rest != nil {
		free -= b.Rest.Load()
	}
	return free, int(min(b.Limit-b.Limit/4-sending, free))
}
