package roce

// reading is a READ of the peer. Its answers have the numbers from first on.
//
// In order: from, the first packet of the answer under way; next, the one to be sent next;
// end, behind the last; all at most packets, and counted from the READ's first one.
type reading struct {
	place
	first           PSN
	packets         int
	from, next, end int
	again           bool // it was answered before, in part at least
}

// read takes a READ that is due.
func (q *QP) read(p *Packet) {
	r := &q.resp
	w := place{p.Key, p.Addr, p.Len}
	if w.len > MaxMessage || cap(r.reads) == 0 {
		q.refuse(NAKInvalidRequest, ErrProtocol)
		return
	}
	if _, err := q.cfg.Memory.Access(q.number, w.key, w.addr, uint64(w.len), RemoteRead); err != nil {
		q.denied(p.Op, &w, err)
		return
	}
	e := r.takeReading()
	if e == nil { // more at a time than the peer was told
		q.refuse(NAKInvalidRequest, ErrProtocol)
		return
	}
	n := packetsOf(int(w.len), q.peer.MTU)
	*e = reading{place: w, first: r.expected, packets: n, end: n}
	r.active++
	r.prev = p.Op
	r.expected = r.expected.Add(n)
	r.msn = r.msn.Add(1)
}

// takeReading is the place of the next READ: a free one or that of the oldest, unless that is
// still to be answered for the first time. If it is to be answered again, its peer has seen the
// answer, or it would not ask for more READs than it may.
func (r *responder) takeReading() *reading {
	if n := len(r.reads); n < cap(r.reads) {
		r.reads = r.reads[:n+1]
		return &r.reads[n]
	}
	e := &r.reads[r.oldest]
	if e.next < e.end {
		if !e.again {
			return nil
		}
		r.active--
	}
	r.oldest = (r.oldest + 1) % len(r.reads)
	return e
}

// replay takes a READ that came before, whole or from one of its packets on. It reports whether it is
// known: one that is forgotten was answered, and its peer has seen that.
func (q *QP) replay(p *Packet) bool {
	r := &q.resp
	for i := range r.reads {
		e := &r.reads[i]
		at := int((p.PSN - e.first) & psnMask)
		off := uint64(at) * uint64(q.peer.MTU)
		if at >= e.packets || p.Key != e.key || p.Addr != e.addr+off || off+uint64(p.Len) != uint64(e.len) {
			continue
		}
		q.stats.ReadReplays++
		if e.next == e.end {
			r.active++
		}
		// One of which nothing was answered yet has only been asked for twice.
		e.again = e.again || e.next > e.from
		e.from, e.next, e.end = at, at, at+packetsOf(int(p.Len), q.peer.MTU)
		return true
	}
	q.dev.drop(DropWindow)
	return false
}

// fillRead adds an answer of the oldest READ that is to be answered to b. It reports false if
// there was no room.
func (q *QP) fillRead(b *Burst) bool {
	r := &q.resp
	e := r.firstReading()
	at := e.next
	off := at * q.peer.MTU
	n := min(q.peer.MTU, int(e.len)-off)
	op := readOpcode(at == e.from, at == e.end-1)
	if !b.room(packetLen(op, n)) {
		return false
	}
	region, data, err := q.cfg.Memory.access(q.number, e.key, e.addr+uint64(off), uint64(n), RemoteRead)
	if err != nil {
		// The key ended since. An old request that came twice is forgotten, because its key
		// is most likely gone for the reason that the READ was done.
		e.next = e.end
		r.active--
		if !e.again {
			q.denied(ReadRequest, &e.place, err)
			r.psn = e.first.Add(at) // what comes before it was done
		}
		return true
	}
	e.next++
	if e.next == e.end {
		r.active--
	}
	t := b.add(&q.dev.out, &Packet{
		Op: op, Migrated: migrated, PKey: DefaultPKey, Dest: q.peer.Number, PSN: e.first.Add(at),
		Syndrome: AckUnlimited, MSN: r.msn,
	}, [3][]byte{data})
	if region != nil {
		region.lent++
		t.region = region
	}
	return true
}

// firstReading is the oldest READ that is to be answered; there is one.
func (r *responder) firstReading() *reading {
	for i := range r.reads {
		if e := &r.reads[(r.oldest+i)%len(r.reads)]; e.next < e.end {
			return e
		}
	}
	panic("roce: no READ is to be answered")
}

// readOpcode is the opcode of an answer to a READ.
func readOpcode(starts, ends bool) Opcode {
	switch {
	case starts && ends:
		return ReadOnly
	case starts:
		return ReadFirst
	case ends:
		return ReadLast
	}
	return ReadMiddle
}
