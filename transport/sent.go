package transport

import "sync/atomic"

// SentCount counts the operations of a link over a byte stream for Handler.Sent. Whoever posts
// and writes counts on its own thread; the thread that reads tells, before each event: an
// operation that was answered has been written, mostly, and then there is no call for it alone.
//
// The system may have taken the bytes of an operation, and the peer answered, before the
// writing thread has counted it. So the reader leaves word, at the end of a turn that told
// events, that it has not told everything (owed), and who writes next has it told.
//
// Invariant: told <= written <= posted.
type SentCount struct {
	posted, written atomic.Uint64
	owed            atomic.Bool
	told            uint64 // owned by the reader
}

// Posted counts an operation that is posted, before it can be written.
func (c *SentCount) Posted() { c.posted.Add(1) }

// Wrote counts n operations that are written, and reports whether TagReader.TellSent is to be
// called for them.
func (c *SentCount) Wrote(n int) (tell bool) {
	c.written.Add(uint64(n))
	return c.owed.Load() && c.owed.Swap(false)
}

// take is how many operations were written that are not told yet; they are now.
func (c *SentCount) take() (n int) {
	w := c.written.Load()
	n, c.told = int(w-c.told), w
	return n
}

// owe is take at the end of a turn: Wrote asks for what is not written yet.
func (c *SentCount) owe() (n int) {
	if c.posted.Load() == c.told {
		return 0
	}
	// First the word, then the look: whoever writes in between sees the one, or this the other.
	c.owed.Store(true)
	n = c.take()
	if c.posted.Load() == c.told {
		c.owed.Store(false)
	}
	return n
}
