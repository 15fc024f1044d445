package volume

import (
	"time"

	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/rdserr"
)

// Design notes.
//
// Programs know a kernel device by its number, so a mapping keeps the one it has had, also
// while it waits for its server and the kernel has no such device. Then it is a name and no
// more: the kernel would give the number to the next that asks for any, and at the next
// start two mappings would go by it. So no mapping is given a number that another goes by,
// a number that nobody asked for is let go where the kernel has another device there, and a
// start believes what the kernel says of whose a device is.
//
// The number is written down after the kernel has the device, and may not be: the daemon ended
// at once, or its disk was full. What the kernel knows the device by was written before, so that it
// is found by that.

// numbers is what becomes of the device numbers of a state, by its mappings.
type numbers struct {
	alive []bool // the kernel has its device
	taken []bool // another mapping has the number
	told  bool   // the kernel has told which devices it has, if anybody had to ask
}

// numbers tells whose the devices are that an earlier Host has left.
func (h *Host) numbers(old *state) numbers {
	n := numbers{make([]bool, len(old.Mappings)), make([]bool, len(old.Mappings)), true}
	var attached map[int]bool
	devices := func() map[int]bool {
		if attached == nil {
			var err error
			if attached, err = h.drv.status(nbd.AnyDevice); err != nil {
				h.log.Warn("volume: the kernel does not tell which devices it has", "err", err)
				attached, n.told = map[int]bool{}, false
			}
		}
		return attached
	}
	owner := map[string]int{} // by device: whose it is of those that name it
	for i := range old.Mappings {
		o := &old.Mappings[i]
		if o.As != AsNBD {
			continue
		}
		if !h.store.otherBoot(old) && !o.Unused {
			h.findDevice(o, devices)
		}
		index, err := parseNBD(o.Device)
		if err != nil {
			continue
		}
		if !h.store.otherBoot(old) {
			b, known := h.drv.backend(index)
			// A name that was drawn at random is of this start of the machine, if nobody else knows that.
			n.alive[i] = !o.Unused && (known && b != "" && b == o.Backend || !known && h.store.sameBoot(old) && devices()[index])
		}
		if !n.alive[i] && !o.Persist {
			continue // it has ended
		}
		was, named := owner[o.Device]
		if !named {
			owner[o.Device] = i
			continue
		}
		// Whose it is according to the kernel, then who asked for it, then who came first.
		loser := i
		if n.alive[i] && !n.alive[was] || n.alive[i] == n.alive[was] && !o.Chosen && old.Mappings[was].Chosen {
			owner[o.Device], loser = i, was
		}
		n.alive[loser], n.taken[loser] = false, true
	}
	return n
}

// findDevice corrects the number of a mapping's device if the kernel knows another by its name.
func (h *Host) findDevice(o *mappingState, devices func() map[int]bool) {
	if index, err := parseNBD(o.Device); err == nil {
		if b, known := h.drv.backend(index); !known || b == o.Backend {
			return
		}
	}
	if o.Backend == "" {
		return
	}
	for index, attached := range devices() {
		if b, known := h.drv.backend(index); attached && known && b == o.Backend {
			o.Chosen = o.Chosen || o.Device == ""
			o.Device = nbdPath(index)
		}
	}
}

// named is which devices mappings other than m go by.
func (h *Host) named(m *mapping) map[int]bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	named := map[int]bool{}
	add := func(device string) {
		if index, err := parseNBD(device); err == nil {
			named[index] = true
		}
	}
	for _, o := range h.mappings {
		if o != m {
			add(o.spec.Device)
			add(o.wants)
		}
	}
	for _, l := range h.left() {
		if l.mapping != nil {
			add(l.mapping.Device)
		}
	}
	return named
}

// has reports whether the kernel has a device for m. Where it does not tell, one that may
// have had users at the start is taken for that.
func (m *mapping) has(index int) bool {
	if b, known := m.h.drv.backend(index); known {
		return b == m.backend
	}
	return m.again
}

// attach makes a kernel device: the one asked for, the one the kernel still has, the one it
// had, or any.
func (m *mapping) attach() (Front, error) {
	h, s := m.h, &m.spec
	o := kernelOptions{index: nbd.AnyDevice, backend: m.backend, dead: h.cfg.DeadTimeout, timeout: h.cfg.NBDTimeout, resume: m.resume, gone: m.detached}
	if s.OnLoss == OnLossError {
		o.timeout = s.IOTimeout + s.LossTimeout + 10*time.Second
	}
	if s.Device != "" {
		var err error
		if o.index, err = parseNBD(s.Device); err != nil {
			return nil, err
		}
	}
	if o.index == nbd.AnyDevice {
		o.avoid = h.named(m)
	}
	log := h.log.With("mapping", m.id)
	f, err := openKernel(m.ctx, h.drv, o, m.stats, m.c.home, log, h)
	if err != nil && o.resume && m.ctx.Err() == nil {
		log.Warn("volume: the kernel does not take its device up again; it is attached anew", "device", s.Device, "err", err)
		o.resume = false
		f, err = openKernel(m.ctx, h.drv, o, m.stats, m.c.home, log, h)
	}
	if rdserr.Errno(err) == rdserr.ErrBusy.Errno && s.Device != "" && m.wants == "" && !m.has(o.index) {
		log.Warn("volume: the number of a kernel device that is gone is another's; it gets another number", "device", s.Device)
		o.index, o.avoid = nbd.AnyDevice, h.named(m)
		f, err = openKernel(m.ctx, h.drv, o, m.stats, m.c.home, log, h)
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

// detached takes the number from a mapping whose device somebody else has detached: the kernel
// gives it to the next. The mapping stays, without a device, until it is unmapped. One that the kernel keeps
// without a connection (kernelFront.cut) stays the mapping's, and the next Host takes it up.
func (m *mapping) detached(f *kernelFront, err error) {
	h, what := m.h, " has lost its connection and got no other"
	if f.lost.Load() {
		what = " was detached by somebody else"
		h.mu.Lock()
		if m.front == f { // else show sees to it
			m.spec.Device = ""
		}
		h.mu.Unlock()
	}
	h.ev.add(Event{Kind: EventMapping, Role: RoleClient, Session: m.spec.Session, Mapping: m.id, State: StateOpen, Err: err,
		Text: "mapping " + m.id + ": " + nbdPath(f.index) + what})
	h.saver.mark()
}
