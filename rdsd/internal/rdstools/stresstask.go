package rdstools

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/rdsd/rdsd/rdsd/internal/dial"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// task is one RDS socket that sends to every task of the other side. One
// goroutine receives and answers at once where that takes no waiting: at depth 1
// a hand-over to another goroutine would be a third of the round trip. What
// has to wait, and batches, are the other goroutine's. Receiving never waits for
// sending, so two tasks cannot block each other.
type task struct {
	o       *options
	sock    *rdsd.Socket
	local   netip.AddrPort
	work    bool   // send requests, not only acks
	pattern []byte // what follows a header, with --verify

	wake chan struct{} // there may be something to send

	sending sync.Mutex      // held from collecting a batch until it is handed over: order
	begun   bool            // guarded by sending; while send runs: both sides may send
	left    []rdsd.Datagram // guarded by sending; collected, and there was no room

	mu    sync.Mutex
	pairs []pair // guarded by mu; one for each task of the other side
	stats stats  // guarded by mu
}

// pair is the conversation with one task of the other side. seq counts
// requests and acks together, each way.
type pair struct {
	peer             netip.AddrPort
	sendSeq, recvSeq uint32
	sendIndex        uint32 // slot of the next request
	recvIndex        uint32 // slot of the next request from there
	pending          uint32 // requests without an ack
	unacked          uint32 // requests from there we still have to ack
	sent             []time.Time
}

func newTask(o *options, local netip.AddrPort, work bool) *task {
	t := &task{o: o, local: local, work: work, wake: make(chan struct{}, 1)}
	if o.verify != 0 {
		t.pattern = pattern(int(max(o.reqSize, o.ackSize)) - headerBytes)
	}
	for i := range o.tasks {
		t.pairs = append(t.pairs, pair{
			peer: netip.AddrPortFrom(o.sendAddr, o.port+1+i),
			sent: make([]time.Time, o.depth),
		})
	}
	return t
}

func (t *task) read() stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stats
}

// A batch holds at most so much, so that acks do not wait behind it for long.
const (
	batchDatagrams = 64
	batchBytes     = 256 << 10
)

// send keeps the pipelines full until ctx ends.
func (t *task) send(ctx context.Context) error {
	var batch []rdsd.Datagram
	var arena []byte
	for {
		t.sending.Lock()
		t.begun = true
		if batch = append(batch[:0], t.left...); len(batch) > 0 {
			t.left = nil
		} else {
			batch, arena = t.collect(batch, arena[:0], batchDatagrams)
		}
		err := t.hand(ctx, batch)
		if ctx.Err() != nil || err != nil {
			t.begun = false // what hand could not send would be missing before the next
		}
		t.sending.Unlock()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case len(batch) > 0:
			continue
		}
		select {
		case <-ctx.Done(): // once more, to end it
		case <-t.wake:
		}
	}
}

// hand gives a batch to the socket, waiting for room.
func (t *task) hand(ctx context.Context, batch []rdsd.Datagram) error {
	if len(batch) == 0 {
		return nil
	}
	start := time.Now()
	n, err := t.sock.SendBatch(ctx, batch)
	if err != nil {
		return fmt.Errorf("task %s: sending failed after %d of %d datagrams: %w", t.local, n, len(batch), dial.Cause(err))
	}
	t.sentIn(time.Since(start), len(batch))
	return nil
}

func (t *task) sentIn(d time.Duration, datagrams int) {
	us := uint64(d.Microseconds()) / uint64(datagrams)
	t.mu.Lock()
	for range datagrams {
		t.stats.sendUsecs.add(us)
	}
	t.mu.Unlock()
}

// answer sends the one datagram that is due, from the goroutine that received, if
// nobody else is sending and there is room; everything else it leaves to send.
func (t *task) answer(arena []byte) []byte {
	if t.sending.TryLock() {
		var done bool
		arena, done = t.answerLocked(arena)
		t.sending.Unlock()
		if done {
			return arena
		}
	}
	select {
	case t.wake <- struct{}{}:
	default:
	}
	return arena
}

// answerLocked reports whether nothing is left to send. t.sending is held.
func (t *task) answerLocked(arena []byte) ([]byte, bool) {
	if !t.begun || len(t.left) > 0 {
		return arena, false
	}
	var one [1]rdsd.Datagram
	batch, arena := t.collect(one[:0], arena[:0], 1)
	if len(batch) == 0 {
		return arena, true
	}
	start := time.Now()
	if t.sock.TrySend(batch[0].Addr, batch[0].Payload) != nil {
		// send offers it again, and reports the error if it is not one of room.
		t.left = []rdsd.Datagram{{Addr: batch[0].Addr, Payload: bytes.Clone(batch[0].Payload)}}
		return arena, false
	}
	t.sentIn(time.Since(start), 1)
	return arena, !t.due()
}

// due reports whether collect would find something.
func (t *task) due() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.pairs {
		if p := &t.pairs[i]; p.unacked > 0 || t.work && p.pending < t.o.depth {
			return true
		}
	}
	return false
}

// collect takes what is to be sent now, at most so many datagrams: acks first,
// then requests.
func (t *task) collect(batch []rdsd.Datagram, arena []byte, most int) ([]rdsd.Datagram, []byte) {
	if cap(arena) == 0 {
		arena = make([]byte, 0, batchBytes+int(max(t.o.reqSize, t.o.ackSize)))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	full := func() bool { return len(batch) >= most || len(arena) >= batchBytes }
	put := func(p *pair, op uint8, index uint32, size uint32) {
		from := len(arena)
		arena = arena[:from+int(size)]
		b := arena[from:]
		h := header{seq: p.sendSeq, from: t.local, to: p.peer, index: uint16(index), op: op}
		h.put(b)
		if t.pattern != nil {
			copy(b[headerBytes:], t.pattern)
		}
		p.sendSeq++
		batch = append(batch, rdsd.Datagram{Addr: p.peer, Payload: b})
	}
	for i := range t.pairs {
		p := &t.pairs[i]
		for ; p.unacked > 0 && !full(); p.unacked-- {
			put(p, opAck, (p.recvIndex+t.o.depth-p.unacked)%t.o.depth, t.o.ackSize)
			t.stats.ackTx.add(uint64(t.o.ackSize))
		}
		for t.work && p.unacked == 0 && p.pending < t.o.depth && !full() {
			put(p, opRequest, p.sendIndex, t.o.reqSize)
			p.sent[p.sendIndex] = now
			p.sendIndex = (p.sendIndex + 1) % t.o.depth
			p.pending++
			t.stats.reqTx.add(uint64(t.o.reqSize))
		}
	}
	return batch, arena
}

// receive checks and answers what arrives until ctx ends.
func (t *task) receive(ctx context.Context, outlier func(time.Duration)) error {
	into := make([]rdsd.Datagram, batchDatagrams)
	var arena []byte
	for {
		n, err := t.sock.RecvBatch(ctx, into)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("task %s: receiving failed: %w", t.local, dial.Cause(err))
		}
		for _, d := range into[:n] {
			rtt, err := t.take(d, time.Now())
			if err != nil {
				return err
			}
			outlier(rtt)
		}
		arena = t.answer(arena)
	}
}

// take handles one datagram; rtt is that of the request it acknowledges, or 0.
func (t *task) take(d rdsd.Datagram, now time.Time) (rtt time.Duration, err error) {
	i := int(d.Addr.Port()) - int(t.o.port) - 1
	if i < 0 || i >= len(t.pairs) {
		return 0, fmt.Errorf("task %s: received from %s, which is no task of the other side", t.local, d.Addr)
	}
	if len(d.Payload) < headerBytes {
		return 0, fmt.Errorf("task %s: received %d bytes from %s, less than the header of %d", t.local, len(d.Payload), d.Addr, headerBytes)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := &t.pairs[i]
	got := parseHeader(d.Payload)
	want := header{seq: p.recvSeq, from: d.Addr, to: t.local, op: got.op}
	size := t.o.reqSize
	switch got.op {
	case opRequest:
		want.index = uint16(p.recvIndex)
	case opAck: // for the oldest request outstanding
		size = t.o.ackSize
		want.index = uint16((p.sendIndex + t.o.depth - p.pending) % t.o.depth)
	default:
		return 0, fmt.Errorf("task %s: unknown op %d from %s", t.local, got.op, d.Addr)
	}
	if got.retry != 0 && got.seq < want.seq {
		return 0, nil // an async sender repeats itself
	}
	if err := t.check(d, got, want, size); err != nil {
		return 0, err
	}
	p.recvSeq++
	if got.op == opRequest {
		if p.unacked >= t.o.depth {
			return 0, fmt.Errorf("task %s: %s has more than %d requests outstanding", t.local, d.Addr, t.o.depth)
		}
		t.stats.reqRx.add(uint64(len(d.Payload)))
		p.unacked++
		p.recvIndex = (p.recvIndex + 1) % t.o.depth
		return 0, nil
	}
	if p.pending == 0 {
		return 0, fmt.Errorf("task %s: ack from %s without a request", t.local, d.Addr)
	}
	t.stats.ackRx.add(uint64(len(d.Payload)))
	rtt = now.Sub(p.sent[want.index])
	t.stats.rtt(rtt)
	p.pending--
	return rtt, nil
}

// check compares what the old tool compares: the size, the first 19 bytes and,
// with --verify, the pattern.
func (t *task) check(d rdsd.Datagram, got, want header, size uint32) error {
	if uint32(len(d.Payload)) != size {
		return fmt.Errorf("task %s: op %d from %s has %d bytes, not %d", t.local, got.op, d.Addr, len(d.Payload), size)
	}
	var wb [headerBytes]byte
	want.put(wb[:])
	if !bytes.Equal(d.Payload[:checkedBytes], wb[:checkedBytes]) {
		return fmt.Errorf("task %s: a datagram from %s has a header that was not expected:\n"+
			"    member        expected             got\n"+
			"       seq %15d %15d\n from      %15s %15s\n   to      %15s %15s\n     index %15d %15d\n        op %15d %15d",
			t.local, d.Addr, want.seq, got.seq, want.from, got.from, want.to, got.to, want.index, got.index, want.op, got.op)
	}
	body := d.Payload[headerBytes:]
	if t.pattern == nil || bytes.Equal(body, t.pattern[:len(body)]) {
		return nil
	}
	first, bad := -1, 0
	for i := range body {
		if body[i] != t.pattern[i] {
			bad++
			if first < 0 {
				first = i
			}
		}
	}
	return fmt.Errorf("task %s: a datagram from %s has a corrupted payload at offset %d; %d of %d bytes differ", t.local, d.Addr, first, bad, len(body))
}
