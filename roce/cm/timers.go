package cm

import "time"

// timers is a heap of connections by the time at which something is due. A Conn's slot is its
// place in it.
type timers []*Conn

// noSlot is the place of a connection that waits for nothing.
const noSlot = -1

func (h timers) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].slot, h[j].slot = i, j
}

func (h timers) up(i int) {
	for i > 0 && h[i].at < h[(i-1)/2].at {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (h timers) down(i int) {
	for {
		least := i
		for _, j := range [...]int{2*i + 1, 2*i + 2} {
			if j < len(h) && h[j].at < h[least].at {
				least = j
			}
		}
		if least == i {
			return
		}
		h.swap(i, least)
		i = least
	}
}

// arm has Tick look at c when it is to be repeated or ends, whichever is first.
func (c *Conn) arm() {
	h := &c.m.timers
	if c.slot == noSlot {
		c.slot = len(*h)
		*h = append(*h, c)
	}
	c.at = min(c.again, c.deadline)
	h.up(c.slot)
	h.down(c.slot)
}

// disarm is for a state that lasts until something happens.
func (c *Conn) disarm() {
	if c.slot == noSlot {
		return
	}
	h := &c.m.timers
	i, last := c.slot, len(*h)-1
	h.swap(i, last)
	(*h)[last] = nil
	*h = (*h)[:last]
	if i < last {
		h.up(i)
		h.down(i)
	}
	c.slot = noSlot
}

// repeat has c.out sent again until the state changes: after the time that is
// configured, then after twice as long, up to what kernels wait, most; for patience in all.
// Repetitions are harmless, and kernels are slow to repeat theirs.
func (c *Conn) repeat(now time.Duration, most, patience time.Duration) {
	c.most, c.pause = most, min(c.m.cfg.Repeat, most)
	c.patient = patience
	c.deadline = now + patience
	c.later(now)
}

// later sets the time of the next repetition, a little later than what is due: two sides that
// began at once are not to meet again and again.
func (c *Conn) later(now time.Duration) {
	c.again = now + c.pause + time.Duration(c.m.rnd.Int63n(int64(c.pause)/8+1))
	c.arm()
}

// doAgain is a repetition that is due.
func (c *Conn) doAgain(now time.Duration) {
	c.lent = false
	c.pause = min(2*c.pause, c.most)
	if c.mayTell(now) {
		c.m.stats.Repeated++
		c.sendAgain(now)
	}
	c.later(now)
}

// sendAgain sends what was sent last that has to be answered, or answers.
func (c *Conn) sendAgain(time.Duration) { c.m.send(c.remote.Addr(), &c.out) }

// patience gives the peer the time that it asked for, from now on. A peer may ask more than
// once, but no connection is begun for longer than MaxDial.
func (c *Conn) patience(now time.Duration) {
	c.giveBack()
	c.again = now + min(codeTime(c.m.in.mra.service), service) + c.most
	c.deadline = min(c.again+c.patient, c.begun+MaxDial)
	c.arm()
}
