package sim

// End is one program's side of a connection.
type End struct {
	n    *Net
	id   int
	h    *Host
	peer *End
	out  *pipe
	in   *pipe

	// Called when there is something to read (bytes, the end, an error), and
	// when bytes can be written again after Write took less than it was given.
	Readable func()
	Writable func()

	err      error // the connection is gone; bytes that had arrived can be read
	wclosed  bool  // FIN is queued
	closed   bool  // the program closed it
	vanished bool  // the machine is gone
	full     bool  // the last Write met a full buffer
}

// ID names the connection; both ends have the same.
func (e *End) ID() int { return e.id }

// Write hands bytes over and tells how many were taken; fewer than offered
// means that the send buffer is full.
func (e *End) Write(pieces [][]byte) (n int, err error) {
	if e.err != nil {
		return 0, e.err
	}
	if e.wclosed || e.closed {
		return 0, ErrClosed
	}
	total := 0
	for _, p := range pieces {
		total += len(p)
	}
	room := e.n.Profile.SndBuf - int(e.out.written-e.out.acked)
	take := min(total, max(room, 0))
	e.full = take < total
	if take > 0 {
		e.out.write(pieces, take)
	}
	return take, nil
}

// Read appends at most max of the bytes that have arrived to b.
func (e *End) Read(b []byte, max int) []byte {
	p := e.in
	n := min(max, len(p.rbuf)-p.roff)
	b = append(b, p.rbuf[p.roff:p.roff+n]...)
	p.roff += n
	if p.roff == len(p.rbuf) {
		p.rbuf, p.roff = p.rbuf[:0], 0
	}
	if n > 0 && len(p.queue) > 0 {
		p.arm() // the window has opened
	}
	return b
}

// Buffered is how many bytes can be read now.
func (e *End) Buffered() int { return len(e.in.rbuf) - e.in.roff }

// Ended reports whether nothing more will come behind what is buffered, and
// why: nil after the peer's FIN.
func (e *End) Ended() (bool, error) {
	if e.err != nil {
		return true, e.err
	}
	return e.in.finArrived, nil
}

// Acked is how many of the bytes written the peer's TCP has acknowledged.
func (e *End) Acked() uint64 { return e.out.acked }

// CloseWrite queues a FIN behind the written bytes.
func (e *End) CloseWrite() {
	if e.err == nil && !e.wclosed {
		e.wclosed = true
		e.out.fin = true
		e.out.arm()
	}
}

// Close ends the program's use: with RST when bytes are unread, otherwise the written bytes
// still go out, with a FIN behind them.
func (e *End) Close() {
	if e.closed {
		return
	}
	e.Readable, e.Writable = nil, nil
	unread := e.Buffered() > 0
	e.in.rbuf, e.in.roff = nil, 0
	if e.err != nil || e.vanished {
		e.closed = true
		return
	}
	if unread {
		// The connection is gone here at once: whatever comes for it later, a keep-alive too, is
		// answered with another RST, should this one meet a cut.
		e.closed, e.err = true, ErrReset
		e.out.purge()
		e.reset(e.peer)
		return
	}
	e.CloseWrite()
	e.closed = true
}

// reset sends a RST to the other end. It is lost if it meets a cut.
func (e *End) reset(to *End) {
	if e.n.cutUntil(e.h.Addr, to.h.Addr) > e.n.now {
		return
	}
	e.n.After(e.n.latency(), func() { to.fail(ErrReset) })
}

// fail ends the connection for this end.
func (e *End) fail(err error) {
	if e.err != nil || e.vanished {
		return
	}
	e.err = err
	e.out.purge()
	if e.Readable != nil {
		e.Readable()
	}
}

// Probe is a TCP keep-alive: it reports whether the other end's system still
// knows the connection. A system that does not answers with RST, which ends it
// here; no answer at all is reported as false.
func (e *End) Probe(answer func(alive bool)) {
	n := e.n
	there, back := n.latency(), n.latency()
	n.After(there+back, func() {
		switch {
		case e.err != nil || e.closed || e.vanished:
		case n.cutUntil(e.h.Addr, e.peer.h.Addr) > n.now || n.cutUntil(e.peer.h.Addr, e.h.Addr) > n.now || !e.peer.h.up:
			answer(false)
		case e.peer.vanished || e.peer.err != nil:
			e.fail(ErrReset)
		default:
			answer(true)
		}
	})
}

// Break is a fault: the connection is reset from outside. A random part of the bytes under
// way still arrives. Only this end learns of it when half is true; the other does when it
// next sends something.
func (e *End) Break(half bool) {
	ends := []*End{e, e.peer}
	for _, x := range ends {
		if x.closed || x.err != nil || x.vanished {
			continue
		}
		x.in.tear()
	}
	e.fail(ErrReset)
	if !half {
		e.peer.fail(ErrReset)
	}
}

// Hang is a fault: this end's connection times out locally, and the other end does not
// learn of it.
func (e *End) Hang() { e.fail(ErrTimeout) }
