package nbd

import (
	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/internal/guard"
)

// Design notes.
//
// A thread that completes a request and finds no other sending takes the transmit token and
// writes the reply itself, and those that others finish meanwhile, in one writev each time;
// one that finds the token taken leaves its reply in the queue and goes. So replies to a
// batch leave together, and no thread is woken for them. A full socket must not hold up a
// device's thread: the token then goes to a goroutine of the connection's own, which waits.

const (
	// sendRounds bounds how long a completing thread sends replies that others finish.
	sendRounds = 8
	// sendBytes bounds one round, so that memory is given back in time.
	sendBytes = 4 << 20
	// hdrSpace is the room for the headers of one round.
	hdrSpace = 8 << 10
)

// Complete is called by the device.
func (c *conn) Complete(batch []*blk.Request) {
	defer c.srv.opts.Guard.Recover(guard.Volume, c.faultFn)
	if n := changing(batch); n > 0 {
		c.changing.Add(-n)
	}
	if c.pending.Add(-int64(len(batch))); c.broken.Load() || c.last.Load() { // it may be waited for
		c.mu.Lock()
		c.room.Broadcast()
		c.mu.Unlock()
	}
	var done opList
	for _, r := range batch {
		o := r.Ctx.(*op)
		o.err = r.Err
		if o.cmd == cmdRead && o.err == nil {
			o.data = o.buf
		}
		if o.rb != nil { // the payload of a write is not needed any more
			o.rb.release()
			o.rb = nil
		}
		done.push(o)
	}
	c.queue(&done)
}

// finish queues the reply to one command.
func (c *conn) finish(o *op) {
	var done opList
	done.push(o)
	c.queue(&done)
}

// queue appends replies and sends them if no other thread does.
func (c *conn) queue(done *opList) {
	c.mu.Lock()
	c.out.append(done)
	if c.sending {
		c.mu.Unlock()
		return
	}
	c.sending = true
	c.mu.Unlock()
	switch l := c.loop; {
	case l != nil && l.r.OnThread():
		l.r.Defer(l.sendFn)
	case l != nil:
		l.send()
	case !c.s.inline() || !c.transmit(sendRounds, false):
		go c.drainFn() // ends when nothing is to be sent, or the connection is closed
	}
}

// drain sends with leave to wait.
func (c *conn) drain() {
	defer c.srv.opts.Guard.Recover(guard.Volume, c.faultFn) // transmit has its own
	c.transmit(0, true)
}

// transmit is called with the transmit token. It sends until nothing is left,
// gives the token up and returns true; or it returns false after so many
// rounds (0: no bound) or when it would have to wait, and keeps it.
func (c *conn) transmit(rounds int, mayWait bool) (done bool) {
	defer c.forgive(&done)
	guard.Point("nbd.send")
	for n := 0; ; n++ {
		if len(c.vec) == 0 && !c.gather() {
			return true
		}
		if rounds > 0 && n == rounds {
			return false
		}
		// Nothing can be sent any more, but every op has to come back to its account.
		if c.broken.Load() {
			c.clearVec()
			continue
		}
		if mayWait {
			// A client that does not read is given up after a time: it holds memory and a
			// thread.
			c.stuck.begin(c)
		}
		sent, err := c.s.write(c.vec, mayWait)
		if mayWait {
			c.stuck.end()
		}
		c.srv.count.bytesOut.Add(uint64(sent))
		switch {
		case err == errAgain:
			return false
		// Around again, to take back the queued replies.
		case err != nil:
			c.fail()
			continue
		}
		c.advance(sent)
	}
}

// gather puts queued replies into vec. When there is none, it gives the token up.
func (c *conn) gather() bool {
	c.mu.Lock()
	q := c.out
	c.out = opList{}
	if q.head == nil {
		// Under the lock that queue takes: a thread that queues after this finds the token
		// free.
		c.sending = false
		c.room.Signal()
		c.mu.Unlock()
		return false
	}
	c.mu.Unlock()

	if c.hdrs == nil {
		c.hdrs = make([]byte, 0, hdrSpace)
	}
	c.hdrs = c.hdrs[:0]
	// Headers that follow each other lie behind each other in hdrs, and are one piece of the
	// call.
	bytes, open := 0, false // open: the last piece is headers, and can be made longer
	for q.head != nil && len(c.vec)+2 <= maxVec && len(c.hdrs)+maxHeader <= cap(c.hdrs) && bytes < sendBytes {
		o := q.pop()
		from := len(c.hdrs)
		c.hdrs = o.header(c.hdrs, c.structured)
		if o.err != nil {
			c.srv.count.failed.Add(1)
		}
		if open {
			last := len(c.vec) - 1
			// hdrs never moves: its capacity was looked at in the loop's condition, and pieces
			// point into it.
			from -= len(c.vec[last])
			c.vec[last] = c.hdrs[from:]
		} else {
			c.vec = append(c.vec, c.hdrs[from:])
		}
		if open = len(o.data) == 0; !open {
			c.vec = append(c.vec, o.data)
		}
		bytes += len(o.data)
		c.sent.push(o)
	}
	if c.last.Load() {
		c.linger()
	}
	if q.head != nil { // the rest goes first next time
		c.mu.Lock()
		q.append(&c.out)
		c.out = q
		c.mu.Unlock()
	}
	return true
}

// advance takes n bytes off vec, and gives the ops back when all have left.
func (c *conn) advance(n int) {
	i := 0
	for i < len(c.vec) && n >= len(c.vec[i]) {
		n -= len(c.vec[i])
		i++
	}
	if i == len(c.vec) {
		c.clearVec()
		return
	}
	k := copy(c.vec, c.vec[i:])
	clear(c.vec[k:])
	c.vec = c.vec[:k]
	c.vec[0] = c.vec[0][n:]
}

func (c *conn) clearVec() {
	clear(c.vec)
	c.vec = c.vec[:0]
	c.recycle(&c.sent)
}
