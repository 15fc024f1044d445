package volume

import (
	"context"
	"slices"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rtrs"
)

// unfencedWords are the words of rtrs.Unfenced.
var unfencedWords = [...]string{rtrs.RetryAfter: UnfencedAfter, rtrs.RetryNow: UnfencedNow, rtrs.RetryNever: UnfencedWait}

// unfenced is the policy of a word, which was checked.
func unfenced(s string) rtrs.Unfenced {
	return rtrs.Unfenced(max(slices.Index(unfencedWords[:], s), 0))
}

// reconnects is MapSpec.MaxReconnects as rtrs has it.
func reconnects(n int) int {
	if n == NoLimit {
		return 0
	}
	return n
}

// SessionChange is what is to be changed of a session. What is zero stays.
type SessionChange struct {
	Policy        string
	Unfenced      string
	UnfencedAfter time.Duration
	MaxReconnects int
}

// check tells what is wrong with c by itself.
func (c *SessionChange) check() error {
	bad := func(format string, args ...any) error { return rdserr.With(rdserr.ErrInvalid, format, args...) }
	switch {
	case *c == SessionChange{}:
		return bad("there is nothing to change")
	case c.Unfenced != "" && checkUnfenced(c.Unfenced) != nil:
		return bad("without a fence %v", checkUnfenced(c.Unfenced))
	case c.UnfencedAfter != 0 && (c.UnfencedAfter < minUnfenced || c.UnfencedAfter > maxTimeout):
		return bad("without a fence after %v; want %v to %v", c.UnfencedAfter, minUnfenced, maxTimeout)
	case c.MaxReconnects != 0 && !checkReconnects(c.MaxReconnects):
		return bad("%d attempts to reconnect; want -1 (without end) or 1 to %d", c.MaxReconnects, maxReconnects)
	case c.Policy != "":
		p, err := rtrs.ParsePolicy(c.Policy)
		c.Policy = p.String()
		return err
	}
	return nil
}

// apply changes s.
func (c *SessionChange) apply(s *MapSpec) {
	if c.Policy != "" {
		s.Policy = c.Policy
	}
	if c.Unfenced != "" {
		s.Unfenced = c.Unfenced
	}
	if c.UnfencedAfter != 0 {
		s.UnfencedAfter = c.UnfencedAfter
	}
	if c.MaxReconnects != 0 {
		s.MaxReconnects = c.MaxReconnects
	}
}

// change changes what is written down of a mapping.
func (s *mappingState) change(c *SessionChange) {
	m := MapSpec{Policy: s.Policy, Unfenced: s.Unfenced, MaxReconnects: s.MaxReconnects}
	c.apply(&m)
	s.Policy, s.Unfenced, s.MaxReconnects = m.Policy, m.Unfenced, m.MaxReconnects
	if m.UnfencedAfter != 0 {
		s.UnfencedAfter = m.UnfencedAfter.String()
	}
}

// SetSession changes a client's session, named by name or ID, while it is in use: what it does
// from now on, and what is persistent of its mappings.
func (h *Host) SetSession(ctx context.Context, session string, change SessionChange) (SessionInfo, error) {
	if err := change.check(); err != nil {
		return SessionInfo{}, err
	}
	c, err := h.clientSession(session)
	if err != nil {
		return SessionInfo{}, err
	}
	now := c.lock(h.now())
	change.apply(&c.spec)
	p, _ := rtrs.ParsePolicy(c.spec.Policy) // it was checked, and so was the rest
	c.rt.SetPolicy(p)
	c.rt.SetUnfenced(now, unfenced(c.spec.Unfenced), c.spec.UnfencedAfter)
	c.rt.SetMaxReconnects(reconnects(c.spec.MaxReconnects))
	c.finish(now)
	h.mu.Lock()
	// Those that are not back yet are to join it as it is, and one of them may be the one that makes it at the next start.
	for _, m := range h.mappings {
		if m.c == c || m.waits() && m.spec.Session == c.spec.Session {
			change.apply(&m.spec)
		}
	}
	for _, l := range h.leftovers {
		if l.mapping != nil && l.mapping.Session == c.spec.Session {
			l.mapping.change(&change)
		}
	}
	h.mu.Unlock()
	err = h.saveDone(ctx, "session %s is changed", session)
	return c.info(), err
}

// SetPolicy changes how a client's session chooses among its paths.
func (h *Host) SetPolicy(ctx context.Context, session, policy string) error {
	if policy == "" {
		return rdserr.With(rdserr.ErrInvalid, "policy is missing; want %s", rtrs.PolicyNames())
	}
	_, err := h.SetSession(ctx, session, SessionChange{Policy: policy})
	return err
}
