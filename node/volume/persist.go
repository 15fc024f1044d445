package volume

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/rdserr"
)

// saveDone is saveBy of what is done and not taken back: an error that said nothing of that would have it done again, or taken
// for undone.
func (h *Host) saveDone(ctx context.Context, format string, args ...any) error {
	err := h.saveBy(ctx)
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s, but a start finds it as it was until that is written down, which is tried again by itself: %w", fmt.Sprintf(format, args...), err)
}

// saveBy writes down what is there now, and waits for that until ctx ends.
func (h *Host) saveBy(ctx context.Context) error { return h.saver.save(ctx.Done()) }

// keepPast writes down what Server.Past tells anew, in the background. Until the
// Host has taken up what an earlier one left nothing is written; it is then.
func (h *Host) keepPast() { h.saver.mark() }

// write is the saver's.
func (h *Host) write() (err error) {
	if e := h.guard.Do(guard.Task, func() {
		guard.Point("save")
		err = h.store.write(func() state { return h.snapshot(true) })
	}); e != nil {
		return e
	}
	return err
}

// wrote is told by the saver when writes begin to fail, and when they succeed again.
func (h *Host) wrote(err error) {
	if h.store.unread {
		return // New has told that nothing is written
	}
	if err != nil {
		h.log.Error("volume: the state cannot be kept; it is tried again", "err", err)
	} else {
		h.log.Info("volume: the state is kept again")
	}
}

// lasts tells whether a mapping outlives the end of its Host in order.
func (s *MapSpec) lasts() bool { return s.Persist || s.As == AsNBD }

func (h *Host) snapshot(running bool) state {
	var st state
	if h.srv != nil {
		st.Past, st.Forgot = h.srv.past()
		st.Held, st.Kernels = h.srv.held(), h.srv.kernels()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	running = running && !h.closing // who saves late does not take the stop back
	st.Running, st.NextID = running, h.nextID
	for _, x := range h.exports {
		if x.spec.Persist {
			st.Exports = append(st.Exports, x.spec.state())
		}
	}
	for _, m := range h.mappings {
		// A Map that a stop cuts short has failed, and is nothing for the next start.
		made := m.front != nil || m.restored
		if !m.ending && (running && (m.stage == shown || m.restored) || m.spec.lasts() && (running || made)) {
			s := m.spec.state(m.wants, m.backend, m.toKeep())
			s.Unused = !m.used() || m.deviceLost()
			st.Mappings = append(st.Mappings, s)
		}
	}
	for _, l := range h.left() {
		switch m := l.mapping; {
		case m == nil:
			st.Exports = append(st.Exports, *l.export)
		case running || m.Persist || m.As == AsNBD:
			st.Mappings = append(st.Mappings, *m)
		}
	}
	// A start takes them up in this order: of more than there may be then, the same ones have a place each time. Mappings
	// come as they were made.
	slices.SortFunc(st.Exports, func(a, b exportState) int { return cmp.Compare(a.Name, b.Name) })
	return st
}

// startMappings takes up what an earlier Host has left, in the background.
func (h *Host) startMappings(old *state) {
	crashed := h.store.crashed(old)
	n := h.numbers(old)
	var entered []*mapping
	for i := range old.Mappings {
		o := &old.Mappings[i]
		s, err := o.spec()
		resume := n.alive[i]
		if err == nil && !s.Persist && !resume && !(crashed && s.As == AsSocket) {
			continue // it ended with the earlier Host
		}
		if err == nil && n.taken[i] {
			if !o.Chosen {
				err = rdserr.With(rdserr.ErrExists, "another mapping has the device %s", o.Device)
			}
			s.Device = ""
		}
		if err == nil {
			id := s.ID
			if err = h.cfg.complete(&s); err == nil && id == "" {
				err = rdserr.With(rdserr.ErrInvalid, "a mapping without an ID")
			}
		}
		// A device that is gone has no users that go on with it. Nor has one of a machine that was
		// started since, also if an earlier Host has been there meanwhile without bringing it up.
		// Where nobody knows whether it was, it has some.
		again := !h.store.otherBoot(old) && !o.Unused && (s.As != AsNBD || resume || !n.told)
		var m *mapping
		if err == nil {
			m, err = h.enterMapping(s)
		}
		if err != nil {
			h.leaveMapping(o, again, err)
			h.ev.add(Event{Kind: EventMapping, Mapping: o.ID, State: "failed", Err: err, Text: "mapping " + o.ID + " is not mapped again"})
			continue
		}
		if o.Backend != "" {
			m.backend = o.Backend
		}
		if o.Chosen {
			m.wants = ""
		}
		m.resume, m.restored = resume, true
		if m.again = again; again {
			m.kept = o.kept()
		}
		m.unsaid = o.Flushed && !h.store.otherBoot(old)
		entered = append(entered, m)
	}
	for _, m := range entered { // now that each number has its name
		h.work.Go(func() { // ends when it is there, unmapped, or the Host ends
			defer h.guard.Recover(guard.Step, nil) // beside the attempts; nothing would make another
			m.restore()
		})
	}
}

// Pauses between attempts to restore a mapping, with full jitter, or a path of one.
const (
	restoreMin = 50 * time.Millisecond
	restoreMax = 5 * time.Second
)

// restore brings a mapping up, however long that takes.
func (m *mapping) restore() {
	h := m.h
	said := ""
	for pause := restoreMin; ; pause = min(2*pause, restoreMax) {
		m.turn.Lock()
		if m.ctx.Err() != nil {
			m.turn.Unlock()
			return
		}
		ctx, cancel := h.machine.Timeout(m.ctx, mapTimeout)
		h.mu.Lock()
		raw := MapSpec{Paths: m.spec.Paths}
		h.mu.Unlock()
		var err error
		if m.unsaid {
			// From the first request on it is not true any more. With a lost write behind it, it would
			// have the next Host say that there is none.
			if err = h.saveBy(ctx); err == nil {
				m.unsaid = false
			}
		}
		if err == nil {
			if e := h.guard.Do(guard.Volume, func() {
				guard.Point("restore")
				err = m.bringUp(ctx, &raw, false)
			}); e != nil {
				err = e // it is tried again
			}
		}
		cancel()
		m.turn.Unlock()
		if m.ctx.Err() != nil {
			return
		}
		h.mu.Lock()
		m.startErr = err
		h.mu.Unlock()
		if err == nil {
			if !m.isStale() { // which was told
				h.ev.add(Event{Kind: EventMapping, Role: RoleClient, Session: m.spec.Session, Mapping: m.id, State: StateOpen, Text: "mapping " + m.id + " is mapped again"})
			}
			h.saver.mark()
			return
		}
		if text := err.Error(); text != said {
			said = text
			h.ev.add(Event{Kind: EventMapping, Role: RoleClient, Session: m.spec.Session, Mapping: m.id, State: StateInit, Err: err, Text: "mapping " + m.id + " cannot be mapped again yet"})
		}
		if h.machine.Wait(time.Duration(h.seed()%uint64(pause))+time.Millisecond, m.ctx.Done()) == 0 {
			return
		}
	}
}

// leave ends a mapping with its Host: what the next one can take up stays.
func (m *mapping) leave(ctx context.Context) {
	m.cancel()
	m.turn.Lock()
	defer m.turn.Unlock()
	h := m.h
	h.mu.Lock()
	ending := m.ending
	h.mu.Unlock()
	if ending { // whoever unmaps it ends it, and the Host waits for that
		return
	}
	was, first := m.finish()
	if !first {
		return
	}
	if was == shown {
		ctx, cancel := h.machine.Timeout(ctx, frontEnd)
		if err := m.front.Close(ctx, true); err != nil {
			h.log.Warn("volume: a device was not ended in order", "mapping", m.id, "err", err)
		}
		cancel()
	}
	m.left()
	if d := m.volume(); d != nil {
		now := m.c.lock(h.now())
		// What is still in flight comes back with the end of the session.
		if m.spec.lasts() {
			d.v.Leave(now)
		} else {
			d.v.ForceUnmap(now)
		}
		m.c.finish(now)
	}
	if was >= joined {
		h.release(m.c)
	}
}
