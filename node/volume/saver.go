package volume

import (
	"sync"
	"time"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/rdserr"
)

// saver is the one that writes the state down, in a goroutine of its own. Who
// changed something marks it, and perhaps waits; what was marked while a write was
// under way is in the next one, all of it together. So however often things change,
// and other nodes can make them change by opening and closing volumes, it costs a
// flag here, and a bounded number of writes there.
type saver struct {
	m     *Machine
	write func() error
	told  func(error) // how a write ended, when that is something new
	guard *guard.Guard

	kick chan struct{} // something was marked; has room for one
	stop chan struct{} // closed by end
	done chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex
	dirty   bool      // guarded by mu; marked and not written
	waiting []*asking // guarded by mu; callers of save and soon, told how the next write ends
	asked   bool      // guarded by mu; one of them does not wait for saveEvery
	ended   bool      // guarded by mu
}

const (
	// saveEvery is the least time between two writes that nobody waits for.
	saveEvery = 50 * time.Millisecond
	// A write that failed is tried again, after retryMin at first and then twice as
	// long each time.
	retryMin = time.Second
	retryMax = 30 * time.Second
)

// asking is a caller who waits.
type asking struct {
	done chan struct{} // closed when the state is written, or cannot be
	err  error         // set before
}

func newSaver(m *Machine, write func() error, told func(error)) *saver {
	return &saver{m: m, write: write, told: told, kick: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
}

// mark has the state written down soon. It neither waits nor allocates, and may be
// called with any lock held.
func (s *saver) mark() {
	s.mu.Lock()
	s.dirty = true
	s.mu.Unlock()
	s.nudge()
}

func (s *saver) nudge() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// save has the state written down at once and waits for that. A bell ends the wait: the state
// is written all the same when the disk goes on.
func (s *saver) save(bells ...<-chan struct{}) error {
	a := s.ask(true)
	s.m.Wait(Forever, append([]<-chan struct{}{a.done}, bells...)...)
	select {
	case <-a.done: // perhaps in the same moment
	default:
		return hereError{rdserr.With(rdserr.ErrTimeout, "volumes.state_dir: the file system has not answered in time")}
	}
	if a.err != nil {
		return hereError{a.err}
	}
	return nil
}

// hereError is why what is persistent cannot be written: no other node is asked before it can.
type hereError struct{ error }

func (e hereError) Unwrap() error { return e.error }

// soon is save for those whose number others decide: it keeps to saveEvery.
func (s *saver) soon() error {
	a := s.ask(false)
	s.m.Wait(Forever, a.done)
	return a.err
}

// ask has the state written down, at once or soon.
func (s *saver) ask(atOnce bool) *asking {
	a := &asking{done: make(chan struct{})}
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		a.err = rdserr.ErrShutdown
		close(a.done)
		return a
	}
	s.dirty = true
	s.asked = s.asked || atOnce
	s.waiting = append(s.waiting, a)
	s.mu.Unlock()
	s.nudge()
	return a
}

// outcome is how it has ended; nil: well, or it has not.
func (a *asking) outcome() error {
	select {
	case <-a.done:
		return a.err
	default:
		return nil
	}
}

// run is the goroutine; it ends with end.
func (s *saver) run() {
	defer close(s.done)
	defer s.guard.Recover(guard.Step, nil) // nothing would be kept any more
	last := s.m.Clock() - saveEvery        // when the state was written
	var retry time.Duration
	for {
		s.mu.Lock()
		dirty, asked, waited := s.dirty, s.asked, len(s.waiting) > 0
		s.mu.Unlock()
		since := s.m.Clock() - last
		pause := max(saveEvery, retry) - since
		switch {
		case !dirty:
			pause = Forever
		case waited && !asked: // a disk that failed is tried for them too
			pause = saveEvery - since
		case asked: // somebody wants to know now whether it can be written
			pause = 0
		}
		if pause > 0 {
			if s.wait(pause) {
				continue
			}
			break
		}
		err := s.once()
		last = s.m.Clock()
		if (err == nil) != (retry == 0) {
			s.told(err)
		}
		if retry = min(2*retry, retryMax); err == nil {
			retry = 0
		} else if retry == 0 {
			retry = retryMin
		}
	}
	s.mu.Lock()
	s.ended = true
	dirty := s.dirty
	s.mu.Unlock()
	if dirty { // nothing is lost at the end
		if err := s.once(); err != nil && retry == 0 {
			s.told(err)
		}
	}
}

// wait lets d pass, or less if something is marked. It reports false at the end.
func (s *saver) wait(d time.Duration) bool {
	return s.m.Wait(d, s.kick, s.stop) != 1
}

// once writes what is marked, and tells who waits. What could not be written stays
// marked.
func (s *saver) once() error {
	s.mu.Lock()
	waiting := s.waiting
	s.dirty, s.waiting, s.asked = false, nil, false
	s.mu.Unlock()
	err := s.write()
	if err != nil {
		s.mu.Lock()
		s.dirty = true
		s.mu.Unlock()
	}
	for _, a := range waiting {
		a.err = err
		close(a.done)
	}
	return err
}

// end waits until what is marked is written, and the goroutine has ended.
func (s *saver) end() {
	close(s.stop)
	s.m.Wait(Forever, s.done)
}
