package volume

import "github.com/rdsd/rdsd/rnbd"

// Design notes.
//
// A device of the kernel outlives the daemon, and clients of a socket connect again: what
// they have read, written and not flushed they take for what is there. So a mapping that is
// taken up from an earlier Host goes on with the volume it had (rnbd.Client.MapAgain), and
// what that takes, rnbd.Kept, stands with it in the state. A mapping whose users are surely
// gone, because the machine was started since or the kernel has its device no more, begins
// anew; so does one that was unmapped. That there are none stands in the state as well
// (mappingState.Unused): an earlier Host of this start of the machine may have waited for the
// server until it ended.
//
// What is kept follows the volume: Keep and Note say that it is new, and the last word is
// had when its device has ended.

// kept is what there is to keep of the volume now. Host.mu may be held.
func (d *volumeDevice) kept() rnbd.Kept {
	defer d.c.look()()
	return d.v.Kept()
}

// keep takes over what there is to keep of d, the volume of m. It reports false if m was left
// to the next Host.
func (m *mapping) keep(d *volumeDevice) bool {
	m.h.mu.Lock()
	defer m.h.mu.Unlock()
	if !m.gave {
		m.kept = d.kept()
	}
	return !m.gave
}

// former is what an earlier Host kept; nil: the mapping begins anew.
func (m *mapping) former() *rnbd.Kept {
	m.h.mu.Lock()
	defer m.h.mu.Unlock()
	if !m.again {
		return nil
	}
	k := m.kept
	return &k
}

// toKeep is what is written down. Host.mu is held.
func (m *mapping) toKeep() rnbd.Kept {
	k := m.kept
	k.Flushed = k.Flushed && m.gave
	return k
}

// used reports whether somebody can have used the device since the machine was started, under
// this Host or an earlier one. Host.mu is held.
func (m *mapping) used() bool { return m.again || m.dev != nil }

// deviceLost reports whether somebody else has detached the device: its users are gone, and its
// number is the next one's. Host.mu is held.
func (m *mapping) deviceLost() bool {
	k, ok := m.front.(*kernelFront)
	return ok && k.lost.Load()
}

// isStale reports whether the volume was not found as it had been left.
func (m *mapping) isStale() bool {
	m.h.mu.Lock()
	defer m.h.mu.Unlock()
	return m.kept.Stale
}

// left takes the last word on what is kept: the users of the mapping have had their last
// answers. turn is held.
func (m *mapping) left() {
	h := m.h
	h.mu.Lock()
	if d := m.volume(); d != nil && d != m.asked {
		m.kept = d.kept()
	}
	m.gave = true
	h.mu.Unlock()
	h.saver.mark()
}

// volume is what was made of the volume, open or not; nil: nothing. turn is held.
func (m *mapping) volume() *volumeDevice {
	if m.dev != nil {
		return m.dev
	}
	return m.asked
}
