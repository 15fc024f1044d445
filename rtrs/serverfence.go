package rtrs

import (
	"fmt"
	"slices"

	"github.com/rdsd/rdsd/rdserr"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// pendingFence is a FENCE that is not answered yet.
type pendingFence struct {
	via  *ServerPath
	what rtrswire.Fence
}

// maxFences bounds the fences of a session that may wait: a client has one epoch for each of
// its paths, and some more if those are connected again meanwhile. Each end of a path is a look
// at all that wait.
func (s *Server) maxFences() int { return 4 * s.cfg.MaxPaths }

// fence ends, for the client, what is left of a path's earlier attempts.
func (p *ServerPath) fence(f rtrswire.Fence) error {
	// It would have to end itself before it could be answered.
	if f.Path == p.uuid && int16(f.Attempt-p.attempt) >= 0 {
		return fmt.Errorf("%w: a fence of the path it came on", ErrProtocol)
	}
	e, w := p.ses, pendingFence{p, f}
	if slices.Contains(e.fences, w) {
		return nil // it is answered with the first
	}
	// Each takes memory while it waits; a client has no use for more.
	if n := len(e.fences); n >= p.s.maxFences() {
		return fmt.Errorf("%w: %d fences wait", ErrProtocol, n)
	}
	for _, q := range p.s.of[p.session] {
		// The links are closed first, so that nothing more of those attempts arrives; then the
		// requests at the store end (resumeWaiting).
		if covers(q, p, &f) && q.state < Closing {
			q.lose(nil)
		}
	}
	// The others wait for what they waited for, and are not looked at: a client sends as many
	// as it likes.
	if !p.s.answerFence(w) {
		e.fences = append(e.fences, w)
	}
	return nil
}

// covers reports whether q, of the session of p, is one of the paths that f, which came on p,
// is about.
func covers(q, p *ServerPath, f *rtrswire.Fence) bool {
	return q.session == p.session && q.uuid == f.Path && int16(f.Attempt-q.attempt) >= 0
}

// resumeWaiting answers fences and lets in paths that waited for others to end.
func (s *Server) resumeWaiting() {
	s.pathEnded = false
	for _, e := range s.sessions {
		e.fences = slices.DeleteFunc(e.fences, s.answerFence)
	}
	for _, p := range s.paths {
		if p.state == Fencing {
			s.letIn(p)
		}
	}
}

// answerFence answers w if the attempts it is about have ended. It reports whether w is
// done with.
func (s *Server) answerFence(w pendingFence) bool {
	// The client sends it again on another path.
	if w.via.state != Connected {
		return true
	}
	for _, q := range s.of[w.via.session] {
		// Something of it may still happen: links that are not closed, or requests at the store.
		if covers(q, w.via, &w.what) {
			return false
		}
	}
	s.stats.Fenced++
	w.what.Type, w.what.Errno = rtrswire.FencedType, 0
	w.via.send(w.what.Append(s.tail[:0]))
	return true
}

// letIn connects p, which has named its session, once no request of its older attempts and
// of a session that it replaces can happen any more.
func (s *Server) letIn(p *ServerPath) {
	var ses, rival *ServerSession
	wait := false
	// Its INFO_RSP tells the client that its older attempts have ended, so it waits until they
	// have.
	for _, q := range s.paths {
		if q != p && q.session == p.session && q.uuid == p.uuid && int16(p.attempt-q.attempt) > 0 {
			wait = true
		}
	}
	for _, e := range s.sessions {
		switch {
		case e.uuid == p.session:
			// A session that is down never comes back: its paths find a new one. A client that
			// fences asks for the end of what it has there; a kernel has told its users that it
			// failed, and what it writes next must not be overtaken.
			if !e.down {
				ses = e
			} else if !p.fences {
				wait = true
			}
		case e.Name != p.name:
		// Requests of the former session of this name at the store could overwrite data of the
		// new one.
		case e.down:
			wait = true
		// A name proves nothing, but the former session's address does a little.
		case !slices.Contains(e.addrs, p.Remote.Addr()):
			p.refuseWith(errnoOther, rdserr.With(rdserr.ErrPerm, "session %q is another node's", p.name))
			return
		default:
			rival = e
		}
	}
	switch {
	case rival == nil:
		p.rival = nil
	case p.outlives(rival):
		s.replace(rival)
		wait = true
	default:
		wait = true
	}
	// A session costs its client nothing: one address may have half of the places.
	from, half := p.Remote.Addr(), (s.cfg.MaxSessions+1)/2
	all, live, allFrom, liveFrom := len(s.sessions), 0, 0, 0
	for _, e := range s.sessions {
		here := slices.Contains(e.addrs, from)
		if here {
			allFrom++
		}
		if !e.down {
			live++
			if here {
				liveFrom++
			}
		}
	}
	switch {
	case wait:
	case ses == nil && live >= s.cfg.MaxSessions:
		p.refuseWith(errnoTooMany, rdserr.With(ErrTooMany, "%d sessions are allowed", s.cfg.MaxSessions))
	case ses == nil && liveFrom >= half:
		p.refuseWith(errnoTooMany, rdserr.With(ErrTooMany, "%v has %d sessions; %d are allowed, half of them from one address", from, liveFrom, s.cfg.MaxSessions))
	case ses == nil && (all >= s.cfg.MaxSessions || allFrom >= half): // until one that has ended has let its chunks go
	case ses != nil && ses.Name != p.name:
		p.refuseWith(errnoInvalid, rdserr.With(rdserr.ErrInvalid, "a path of session %q says that it is of %q", ses.Name, p.name))
	default:
		if ses == nil {
			if ses = s.newSession(p); ses == nil {
				p.refuseWith(errnoNoMemory, rdserr.With(rdserr.ErrNoMemory, "no memory for the chunks of session %q", p.name))
				return
			}
		}
		if err := ses.admit(p); err != nil {
			if len(ses.paths) == 0 {
				ses.drop()
			}
			p.refuseWith(errnoNoMemory, rdserr.With(rdserr.ErrNoMemory, "the chunks of session %q cannot be used by the device: %v", p.name, err))
			return
		}
		ses.join(p)
	}
}

// outlives reports whether p's client lives after e, which has p's name, was up. Its connections
// and its INFO_REQ do not show that: both may have been held on the way, and come when their
// session is over and e is the next one of its client. So it is asked for a heartbeat, which
// clients answer in this state, and the answer is of later than the question. A kernel's
// client takes nothing but the INFO_RSP here and cannot be asked; it waits for the end of e,
// whose own heartbeats tell whether it lives.
func (p *ServerPath) outlives(e *ServerSession) bool {
	if p.rival == e {
		// Answers come in the order of the questions, of which there is one for each rival.
		return p.fences && p.acks >= p.asks
	}
	s := p.s
	p.rival = e
	// Long enough for e to be found silent, if it is.
	p.at = s.now + p.patience()
	for _, q := range e.paths {
		h := q.pulse()
		p.at = max(p.at, s.now+h.silence()+h.every)
	}
	s.arm(p.at)
	if p.fences {
		p.asks++
		p.immediate(0, rtrswire.ImmHeartbeat)
	}
	return false
}

// yield gives p up, whose client has not shown that it lives while its rival did.
func (p *ServerPath) yield() {
	if p.fences {
		p.lose(ErrTimeout)
		return
	}
	// As a kernel's server does: it closes, and has no message for that.
	p.refuseWith(errnoOther, rdserr.With(rdserr.ErrPerm, "session %q lives, and a kernel that asks for its name cannot be asked whether it does", p.name))
}

// replace ends e because its client was started again and has come with another number. If
// the old client is alive it is told, and must not come back: two clients of one name would
// replace each other for ever.
func (s *Server) replace(e *ServerSession) {
	s.stats.Replaced++
	s.replaced[s.numReplace%len(s.replaced)] = e.uuid
	s.numReplace++
	for _, p := range s.paths {
		if p.session != e.uuid || p.state >= Closing {
			continue
		}
		s.event(Event{Kind: EventReplaced, Server: p})
		p.dismiss(errnoReplaced, ErrReplaced)
	}
}
