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

// room returns how many bytes are free, so many the budget has for received datagrams, and how
// many of them more may be accepted for sending; and whether n bytes more are within a's share of
// the memory, which those of no account always are.
func (e *Engine) room(a *quota.Account, n int) (free int64, toSend int, shared bool) {
	b, t := e.cfg.Budget, &e.tally
	sending := b.sending.Load() + t.sending
	free = b.Limit - sending - b.held.Load() - t.held
	if b.Rest != nil {
		free -= b.Rest.Load()
	}
	// Whoever holds no more than is free has not passed its share (quota.Account.Fits), and while
	// half of the memory is free nobody holds more.
	if shared = free-int64(n) >= b.Limit/2; !shared {
		mine := int64(0)
		if t.account == a {
			mine = t.noted
		}
		shared = a.Fits(int64(n), mine, free)
	}
	return free, int(min(b.Limit-b.Limit/4-sending, free)), shared
}
