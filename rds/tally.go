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

// note takes n bytes in the name of a; with a negative n it gives back.
func (t *tally) note(a *quota.Account, n int) {
	if t.account != a {
		t.account.Hold(t.noted)
		t.account, t.noted = a, 0
	}
	t.noted += int64(n)
}

// fits reports whether n bytes more are within a's share of the free memory.
func (t *tally) fits(a *quota.Account, n int) bool {
	mine := t.noted
	if t.account != a {
		mine = 0
	}
	return a.Fits(int64(n), mine, t.sending+t.held)
}

// room returns how many bytes the budget has for received datagrams.
func (e *Engine) room() int64 {
	return e.cfg.Budget.Limit - e.cfg.Budget.Used() - e.tally.sending - e.tally.held
}

// sendRoom is how many bytes more may be accepted.
func (e *Engine) sendRoom() int {
	return e.cfg.Budget.sendRoom(e.tally.sending, e.tally.held)
}
