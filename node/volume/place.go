package volume

import (
	"context"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/rnbd"
)

// place is an export or a root at which volumes are being opened and closed. A file
// system may take its time over either, a close writes back what some of them hold,
// so both are done by visitors, few of them: a session that opens and closes as fast
// as it can, at a store that does not let go, would otherwise hold more threads and
// descriptors each time, and its limit of open volumes would not know. Here its
// next open comes after the closes that were asked for before.
type place struct {
	visits   []visit       // wait for a visitor
	visitors int           // that are at it
	closes   int           // visits that close something, also those under way
	closed   chan struct{} // closed when closes is 0 again; nil: nobody waits for that
}

// visit is one thing to do at a place.
type visit struct {
	open  *rnbd.Opening // or
	close rnbd.Closer
}

// maxVisitors is how many volumes are opened or closed at a time at one export or
// root. Each place has its own, so that a file system that stands still keeps nobody
// from what lies on others.
const maxVisitors = 2

// open has a volume opened at the place where it is to be looked for next. mu is held.
func (s *server) open(o *rnbd.Opening) { s.at(o.Place(), visit{open: o}) }

// at has v done at the place of that key. mu is held.
func (s *server) at(key any, v visit) {
	p := s.places[key]
	if p == nil {
		p = &place{}
		s.places[key] = p
	}
	p.visits = append(p.visits, v)
	if v.close != nil {
		p.closes++
	}
	if p.visitors < maxVisitors {
		p.visitors++
		s.work.Go(func() { // ends when nothing waits there
			defer s.h.guard.Recover(guard.Step, nil) // beside the work at the store these are steps
			s.visitor(key, p)
		})
	}
}

// visitor opens and closes volumes at one place until none waits.
func (s *server) visitor(key any, p *place) {
	for {
		s.mu.Lock()
		if len(p.visits) == 0 {
			if p.visitors--; p.visitors == 0 {
				delete(s.places, key)
			}
			s.mu.Unlock()
			return
		}
		v := p.visits[0]
		p.visits = p.visits[1:]
		s.mu.Unlock()
		if v.open != nil {
			s.opening(v.open)
		} else {
			s.closing(v.close)
			s.mu.Lock()
			if p.closes--; p.closes == 0 && p.closed != nil {
				close(p.closed)
				p.closed = nil
			}
			s.mu.Unlock()
		}
	}
}

// allClosed waits until what was opened at the place of that key, and is not used any more, is closed. It reports
// false if ctx ends before.
func (s *server) allClosed(ctx context.Context, key any) bool {
	done := s.look()
	p := s.places[key]
	if p == nil || p.closes == 0 {
		done()
		return true
	}
	if p.closed == nil {
		p.closed = make(chan struct{})
	}
	closed := p.closed
	done()
	return s.h.machine.Wait(Forever, closed, ctx.Done()) == 0
}

// opening opens a volume, or has it looked for at the next place.
func (s *server) opening(o *rnbd.Opening) {
	var d blk.Device
	var more bool
	var err error
	exp, _ := o.Place().(*rnbd.Export)
	if s.h.room != nil {
		err = s.h.room()
	}
	if err == nil { // else nothing is said of the store
		if e := s.h.guard.Do(guard.Volume, func() { d, more, err = o.Do() }); e != nil {
			d, more, err = nil, false, e
		}
		if err == nil && !more {
			d = s.h.layers(keyOf(o), d)
		}
		if exp != nil {
			s.h.tried(exp, d, err)
		}
	}
	now := s.lock(s.clock())
	if more {
		s.open(o)
	} else {
		s.tally(d)
		s.rn.Opened(now, o, d, err)
	}
	s.finish(now)
}

// closing closes a store.
func (s *server) closing(c rnbd.Closer) {
	var err error
	if e := s.h.guard.Do(guard.Volume, func() { err = c.Close() }); e != nil {
		err = e
	}
	if err != nil {
		s.h.log.Warn("volume: a store was not closed in order", "err", err)
	}
}
