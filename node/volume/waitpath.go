package volume

import (
	"context"
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rtrs"
)

// States that WaitPath waits for.
const (
	PathConnected    = "connected"
	PathDisconnected = "disconnected" // of a client: its links are closed, and it is not connected again by itself
	PathRemoved      = "removed"      // its links are closed, and it is gone
)

// WaitPath waits until a path, named as for RemovePath, has a state. It ends before with the
// reason if the path fails to connect meanwhile, or cannot come to that state, and with ETIMEDOUT
// when ctx ends; nothing is changed about the path by that.
func (h *Host) WaitPath(ctx context.Context, session string, p PathSpec, state string) error {
	// The client's port is another one after it was connected again.
	if ap, err := netip.ParseAddrPort(p.Src); err == nil {
		p.Src = ap.Addr().String()
	}
	for begun := h.now(); ; {
		done, err := h.pathIs(session, p, state, begun)
		if done || err != nil {
			return err
		}
		if h.machine.Wait(askAgain, ctx.Done()) == 0 {
			if ctx.Err() == context.Canceled {
				return rdserr.With(rdserr.ErrCanceled, "the path %v of session %s: given up", p, session)
			}
			return rdserr.With(rdserr.ErrTimeout, "the path %v of session %s is not %s in time; it goes on by itself", p, session, state)
		}
	}
}

// pathIs reports whether a path has the state, or why it will not.
func (h *Host) pathIs(session string, p PathSpec, state string, begun time.Duration) (bool, error) {
	c, err := h.clientSession(session)
	if err != nil { // one of the server, of which a path can only end, or that has ended itself
		if state != PathConnected && !h.srv.hasPath(session, p) {
			return true, nil
		}
		if state == PathConnected {
			return false, err
		}
		return false, nil
	}
	defer c.look()()
	cp, err := pathOf(c.rt.Paths(), session, p, c.ends)
	switch {
	case err != nil && rdserr.Errno(err) == rdserr.ErrNotFound.Errno && state == PathRemoved:
		return true, nil
	case err != nil:
		return false, err
	}
	switch x := cp.Info(); {
	case state == PathRemoved:
		return false, nil
	case x.State == rtrs.Connected && state == PathConnected, x.State == rtrs.Closed && state == PathDisconnected:
		return true, nil
	case state == PathConnected && x.Err != nil && x.ErrAt >= begun && (x.State == rtrs.Reconnecting || x.State == rtrs.Closed):
		return false, x.Err
	case state == PathConnected && x.State == rtrs.Closed:
		return false, rdserr.With(rdserr.ErrCanceled, "the path %v of session %s was disconnected", p, session)
	case state == PathDisconnected && x.State == rtrs.Connected:
		return false, rdserr.With(rdserr.ErrCanceled, "the path %v of session %s was connected again", p, session)
	}
	return false, nil
}

// hasPath tells whether a session of the server has a path still.
func (s *server) hasPath(session string, p PathSpec) bool {
	defer s.look()()
	for _, e := range s.rt.Sessions() {
		if x := s.sessions[e]; e.Name != session && (x == nil || x.id != session) {
			continue
		}
		if _, err := pathOf(e.Paths(), session, p, s.ends); err == nil || rdserr.Errno(err) != rdserr.ErrNotFound.Errno {
			return true
		}
	}
	return false
}
