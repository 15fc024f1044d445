package service

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/config"
)

// ledgerConn is a connection whose client and server a test plays frame by frame.
type ledgerConn struct {
	*callConn
	sock   *scripted
	memory *quota.Node
	count  *base.Counters
}

func newLedgerConn() *ledgerConn {
	k := &ledgerConn{sock: &scripted{}, memory: quota.New(1<<30, nil), count: &base.Counters{}}
	table := &callTable{log: slog.New(slog.DiscardHandler), count: k.count, conns: map[*callConn]struct{}{}}
	account := k.memory.Account(quota.User(1))
	k.callConn = table.wrap(k.sock, config.Identity{UID: 1}, account, func() { account.Close() })
	return k
}

// sends has the client send b in reads of at most so many bytes.
func (k *ledgerConn) sends(b []byte, piece int) error {
	k.sock.in = append(k.sock.in, b...)
	buf := make([]byte, piece)
	for len(k.sock.in) > 0 {
		if _, err := k.Read(buf); err != nil {
			return err
		}
	}
	return nil
}

func flagged(kind, flags byte, stream uint32, payload []byte) []byte {
	b := h2frame(kind, stream, payload)
	b[4] = flags
	return b
}

// grpcMessage is a message of gRPC of which so many bytes come, its head included.
func grpcMessage(size, come int) []byte {
	b := make([]byte, 5+size)
	binary.BigEndian.PutUint32(b[1:], uint32(size))
	return b[:come]
}

func number(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

// TestLedgerOfCalls: what a client owes after each frame of either side, whatever the
// borders of the reads that brought them: for what has come of DATA and was not given
// window for again, its frames and the rest of its buffers, twice what has come of a
// message that is not whole, and for each stream.
func TestLedgerOfCalls(t *testing.T) {
	type step struct {
		what           string
		client, server []byte
		owed           int64
		half, streams  int
	}
	open := h2frame(frameHeaders, 1, []byte("x"))
	open3 := h2frame(frameHeaders, 3, []byte("x"))
	data := func(n int) []byte { return h2frame(frameData, 1, grpcMessage(n, n+5)) }
	part := func(size, come int) []byte { return h2frame(frameData, 1, grpcMessage(size, come)) }
	update := func(stream uint32, b []byte) []byte { return h2frame(frameWindowUpdate, stream, b) }
	preface := make([]byte, prefaceSize)
	for name, steps := range map[string][]step{
		"streams": {
			{"the preface", preface, nil, 0, 0, 0},
			{"headers of no stream", h2frame(frameHeaders, 0, []byte("x")), nil, 0, 0, 0},
			{"data of no stream", data(10), nil, 0, 0, 0},
			{"a stream", open, nil, 0, 0, 1},
			{"its trailers", open, nil, 0, 0, 1},
			{"another", open3, nil, 0, 0, 2},
			{"the server's headers", nil, flagged(frameHeaders, 0, 1, []byte("x")), 0, 0, 2},
			{"the server ends one", nil, flagged(frameHeaders, flagEndStream, 1, []byte("x")), 0, 0, 1},
			{"and again", nil, flagged(frameHeaders, flagEndStream, 1, []byte("x")), 0, 0, 1},
			{"data with the flag that ends a stream, of the server", nil, flagged(frameData, flagEndStream, 3, []byte("x")), 0, 0, 1},
			{"the server resets one", nil, h2frame(frameReset, 3, number(0)), 0, 0, 0},
			{"a stream", open, nil, 0, 0, 1},
			{"the client resets it", h2frame(frameReset, 1, number(0)), nil, 0, 0, 0},
		},
		"messages": {
			{"a stream", append(preface, open...), nil, 0, 0, 1},
			{"nothing", h2frame(frameData, 1, nil), nil, frameBytes, 0, 1},
			{"a message of 5 and 10", data(10), nil, 15 + 2*frameBytes, 0, 1},
			{"half a head", part(100, 3), nil, 18 + 3*frameBytes, 1, 1},
		},
		"halves": {
			{"a stream", append(preface, open...), nil, 0, 0, 1},
			{"a byte", part(100, 1), nil, 2 + frameBytes, 1, 1},
			{"the rest", h2frame(frameData, 1, grpcMessage(100, 105)[1:]), nil, 105 + 2*frameBytes, 0, 1},
			{"all but a byte of another", part(100, 104), nil, 209 + 3*frameBytes, 1, 1},
			{"its last byte, and one of the next", h2frame(frameData, 1, []byte{0, 0}), nil, 211 + 4*frameBytes, 1, 1},
			{"the client resets it", h2frame(frameReset, 1, number(0)), nil, 0, 0, 0},
		},
		"buffers": {
			{"a stream", append(preface, open...), nil, 0, 0, 1},
			{"1024 bytes", data(1019), nil, 1024 + frameBytes, 0, 1},
			{"1025 bytes", data(1020), nil, 1024 + 2048 + 2*frameBytes, 0, 1},
			{"2048 bytes", data(2043), nil, 1024 + 2*2048 + 3*frameBytes, 0, 1},
			{"2049 bytes", data(2044), nil, 1024 + 2*2048 + 4096 + 4*frameBytes, 0, 1},
		},
		"window": {
			{"a stream", append(preface, open...), nil, 0, 0, 1},
			{"window of nothing, before anything has come", nil, update(1, number(0)), 0, 0, 1},
			{"four messages", append(append(data(95), data(95)...), append(data(95), data(95)...)...), nil, 400 + 4*frameBytes, 0, 1},
			{"window of the connection", nil, update(0, number(400)), 400 + 4*frameBytes, 0, 1},
			{"of another stream", nil, update(3, number(400)), 400 + 4*frameBytes, 0, 1},
			{"too short a word", nil, update(1, []byte{0, 0, 1}), 400 + 4*frameBytes, 0, 1},
			{"half of it", nil, update(1, number(200)), 200 + 2*frameBytes, 0, 1},
			{"with the reserved bit", nil, update(1, number(100|1<<31)), 100 + frameBytes, 0, 1},
			{"more than has come", nil, update(1, number(150)), 0, 0, 1},
			{"what was given before", data(95), nil, 50 + frameBytes, 0, 1},
			{"a client's word for it", update(1, number(99)), nil, 50 + frameBytes, 0, 1},
		},
	} {
		for _, piece := range []int{1, 2, 7, 64 << 10} {
			k := newLedgerConn()
			for _, s := range steps {
				if err := k.sends(s.client, piece); err != nil {
					t.Fatalf("%s, %s: %v", name, s.what, err)
				}
				for b := s.server; len(b) > 0; b = b[min(piece, len(b)):] {
					if _, err := k.Write(b[:min(piece, len(b))]); err != nil {
						t.Fatal(err)
					}
				}
				if k.owed != s.owed || k.half != s.half || len(k.streams) != s.streams {
					t.Fatalf("%s in pieces of %d, after %s: %d bytes owed, %d streams in the middle of a message of %d; want %d, %d of %d",
						name, piece, s.what, k.owed, k.half, len(k.streams), s.owed, s.half, s.streams)
				}
				if k.taken < k.owed || k.opened < int64(len(k.streams))*streamBytes || k.account.Used() != k.taken+k.opened {
					t.Fatalf("%s, after %s: %d are taken for %d, %d for %d streams, %d charged", name, s.what, k.taken, k.owed, k.opened, len(k.streams), k.account.Used())
				}
			}
			k.Close()
			k.Close()
			if k.memory.Used() != 0 {
				t.Errorf("%s: %d bytes are charged when the connection is closed", name, k.memory.Used())
			}
		}
	}
}

// TestGrainOfCalls: memory is taken in grains and given back in grains, and never goes to
// and fro for a byte.
func TestGrainOfCalls(t *testing.T) {
	c := newLedgerConn()
	defer c.Close()
	for _, s := range []struct{ owed, want int64 }{
		{0, 0}, {1, callGrain}, {callGrain, callGrain}, {callGrain + 1, 2 * callGrain}, {callGrain, 2 * callGrain}, {1, 2 * callGrain}, {0, callGrain},
		{callGrain, callGrain}, {5 * callGrain, 5 * callGrain}, {3*callGrain + 1, 5 * callGrain}, {3 * callGrain, 4 * callGrain}, {0, callGrain},
	} {
		was := c.taken
		c.mu.Lock()
		c.owed = s.owed
		err := c.take()
		c.give()
		c.mu.Unlock()
		if err != nil || c.taken != s.want || c.account.Used() != s.want {
			t.Errorf("%d owed with %d taken: then %d are, and %d charged, %v; want %d", s.owed, was, c.taken, c.account.Used(), err, s.want)
		}
	}
	c.owed = 0
}

// TestPaddingIsRefused: a frame that no client of gRPC sends ends its connection, which is
// counted once, with a reason.
func TestPaddingIsRefused(t *testing.T) {
	k := newLedgerConn()
	defer k.Close()
	b := append(make([]byte, prefaceSize), h2frame(frameHeaders, 1, []byte("x"))...)
	err := k.sends(append(b, flagged(frameData, flagPadded, 1, []byte("xx"))...), 1<<10)
	if !errors.Is(err, syscall.EINVAL) || k.count.ClientsRefused.Load() != 1 {
		t.Errorf("%v, %d refused", err, k.count.ClientsRefused.Load())
	}
	if n, err := k.Read(make([]byte, 10)); n != 0 && err == nil {
		t.Errorf("it is read on: %d bytes", n)
	}
}

// TestPaceOfFrames: what each frame costs, and how many may come before one is waited for.
func TestPaceOfFrames(t *testing.T) {
	for _, c := range []struct {
		kind   uint8
		stream uint32
		size   int
		want   int
	}{
		{frameHeaders, 1, 1, paceCall}, {frameContinuation, 1, 0, paceCall}, {frameSettings, 0, 0, paceCall},
		{frameData, 1, 1, 0}, {frameData, 1, 0, paceSmall}, {frameData, 0, 1, paceSmall},
		{frameWindowUpdate, 1, 4, 0}, {frameWindowUpdate, 0, 4, paceSmall}, {frameWindowUpdate, 1, 0, paceSmall},
		{frameReset, 1, 4, paceSmall}, {6, 0, 8, paceSmall}, {99, 1, 1, paceSmall},
	} {
		if got := costOf(&frames{kind: c.kind, stream: c.stream}, c.size); got != c.want {
			t.Errorf("a frame of kind %d on stream %d with %d bytes costs %d, want %d", c.kind, c.stream, c.size, got, c.want)
		}
	}
	if a, b := callTime(1), callTime(paceLeast); a != b || b != time.Second/(paceTimes*paceLeast) {
		t.Errorf("a call takes %v of a user that may make few, %v of one that may make %d", a, b, paceLeast)
	}
	if a := callTime(10 * paceLeast); a != callTime(paceLeast)/10 {
		t.Errorf("a call takes %v", a)
	}
	now := time.Unix(1000, 0)
	p := &pace{}
	p.pay(paceBurst*paceCall, paceLeast, now)
	if d := p.due(paceLeast, now); d != 0 {
		t.Errorf("after a whole burst it waits for %v", d)
	}
	p.pay(paceCall, paceLeast, now)
	if d := p.due(paceLeast, now); d != callTime(paceLeast) {
		t.Errorf("a call later it waits for %v, want %v", d, callTime(paceLeast))
	}
	// What was long ago is no credit.
	p.pay(paceCall, paceLeast, now.Add(time.Hour))
	if d := p.due(paceLeast, now.Add(time.Hour)); d != callTime(paceLeast)*(1-paceBurst) {
		t.Errorf("an hour later it waits for %v", d)
	}
}

// TestPacesAreForgotten: users who have no connection and owe nothing are forgotten, and
// no others: who connects anew owes what it did.
func TestPacesAreForgotten(t *testing.T) {
	var l paces
	now := time.Unix(1000, 0)
	a, b := l.join(1), l.join(2)
	if l.join(1) != a {
		t.Error("two connections of a user have a pace each")
	}
	l.leave(a)
	l.sweep(now)
	if l.users[1] != a {
		t.Error("a user with a connection is forgotten")
	}
	l.leave(a)
	b.pay((paceBurst+1)*paceCall, paceLeast, now)
	l.leave(b)
	l.sweep(now)
	if len(l.users) != 1 || l.users[2] != b {
		t.Errorf("left are %v", l.users)
	}
	if l.join(2) != b {
		t.Error("who connects anew owes nothing any more")
	}
	l.leave(b)
	l.sweep(now.Add(callTime(paceLeast)))
	if len(l.users) != 0 {
		t.Errorf("left are %v", l.users)
	}
}

// TestTakenInParts: when window was given again for a part, as large a part of what the frames
// take is gone too, and nothing of it is left with the last byte alone.
func TestTakenInParts(t *testing.T) {
	s := &callStream{received: 40, frames: 80, spare: 120}
	for _, c := range []struct{ n, received, frames, spare int64 }{
		{0, 40, 80, 120}, {10, 30, 60, 90}, {29, 1, 2, 3}, {1, 0, 0, 0}, {5, -5, 0, 0},
	} {
		if s.taken(c.n); s.received != c.received || s.frames != c.frames || s.spare != c.spare {
			t.Errorf("%d more are taken: %d bytes, %d frames, %d to spare; want %+v", c.n, s.received, s.frames, s.spare, c)
		}
	}
}
