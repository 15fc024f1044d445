package rtrs

import (
	"errors"
	"github.com/rdsd/rdsd/transport"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// TestOnePathWithOtherChunks: paths of one session have the same chunks; one that shows others
// breaks the protocol, and the session goes on without it.
func TestOnePathWithOtherChunks(t *testing.T) {
	for _, c := range []struct {
		chunks rtrswire.Chunks
		bad    bool
	}{{fourChunks, false}, {chunksOf(8, 8192, 512), true}, {chunksOf(4, 16384, 512), true}} {
		f, p := upClient(t, ClientConfig{})
		q := f.add(2)
		for i := range f.c.cfg.Conns {
			q.Dialed(f.now, i, rsp(c.chunks, ours))
		}
		err := q.Received(f.now, 0, info(c.chunks, 7), 0, false)
		if c.bad != errors.Is(err, ErrProtocol) || c.bad == (q.State() == Connected) || p.State() != Connected || f.ups != 1 {
			t.Errorf("%d chunks of %d bytes: %v; the path is %v, the other %v, up %d times", c.chunks.Depth, c.chunks.Size(), err, q.State(), p.State(), f.ups)
		}
	}
}

// TestOtherChunksOfAKernel: a kernel says no generation, so that other chunks are a new session when
// no path is connected to the old one. With one that is, and of a server of ours, which would say
// another generation, they break the protocol.
func TestOtherChunksOfAKernel(t *testing.T) {
	for name, c := range map[string]struct {
		flags, g uint32
		alone    bool // no path is connected
		fresh    bool
	}{
		"a kernel's":               {rtrswire.NewRKey, 0, true, true},
		"a kernel's second path":   {rtrswire.NewRKey, 0, false, false},
		"ours, of one generation":  {ours, 7, true, false},
		"ours, a path of the same": {ours, 7, false, false},
	} {
		f := newFakeClient(t, ClientConfig{})
		p := f.add(1)
		for i := range f.c.cfg.Conns {
			p.Dialed(f.now, i, rsp(fourChunks, c.flags))
		}
		if err := p.Received(f.now, 0, info(fourChunks, c.g), 0, false); err != nil {
			t.Fatal(err)
		}
		q := f.add(2)
		if c.alone {
			p.Lost(f.now, 0, rdserr.ErrReset)
			p.Gone(f.now)
		}
		other := chunksOf(8, 8192, 512)
		for i := range f.c.cfg.Conns {
			q.Dialed(f.now, i, rsp(other, c.flags))
		}
		err := q.Received(f.now, 0, info(other, c.g), 0, false)
		if c.fresh && (err != nil || f.c.chunks != other) || !c.fresh && (!errors.Is(err, ErrProtocol) || f.c.chunks != fourChunks) {
			t.Errorf("%s: %v; the session has %d chunks", name, err, f.c.chunks.Depth)
		}
	}
}

// TestNoticesAreChecked: a notice with bytes missing, and one that has no meaning now, break the
// protocol.
func TestNoticesAreChecked(t *testing.T) {
	for _, kind := range []rtrswire.Type{rtrswire.RefusedType, rtrswire.RestType, rtrswire.WakeType} {
		good := rtrswire.Notice{Type: kind, Errno: 5}.Append(nil)
		f, p := upClient(t, ClientConfig{})
		if err := p.Received(f.now, 0, good[:len(good)-1], 0, false); err == nil {
			t.Errorf("%#x without its last byte: taken", uint16(kind))
		}
		f = newFakeClient(t, ClientConfig{})
		p = f.add(1)
		for i := range f.c.cfg.Conns {
			p.Dialed(f.now, i, rsp(fourChunks, ours))
		}
		err := p.Received(f.now, 0, good, 0, false)
		if kind != rtrswire.RefusedType && !errors.Is(err, ErrProtocol) {
			t.Errorf("%#x before the path is connected: %v", uint16(kind), err)
		}
	}
}

// TestGenerationsSkipZero: 0 is the generation of a kernel's sessions, so no session of ours has it.
func TestGenerationsSkipZero(t *testing.T) {
	f := newFakeServer(t, smallServer)
	f.s.generation = math.MaxUint32 - 1
	for i, want := range []uint32{math.MaxUint32, 1, 2} {
		f.up(someone{session: byte(i + 1), path: 1, attempt: 1, addr: byte(i + 1), name: string(rune('a' + i))})
		if got := f.s.sessions[i].generation; got != want {
			t.Errorf("session %d is of generation %d, want %d", i, got, want)
		}
	}
}

// TestInfoOfAPath: whoever asks is told when a path is dialled again, and of a path that is not
// waiting no time at all.
func TestInfoOfAPath(t *testing.T) {
	f := newFakeClient(t, ClientConfig{Name: "a name"})
	p := f.add(1)
	if i := p.Info(); i.RetryAt != 0 || i.State != p.State() {
		t.Errorf("while it is dialled: %+v", i)
	}
	p.Refused(f.now, 0, nil, errors.New("nobody"))
	p.Gone(f.now)
	i, dials := p.Info(), len(f.dials)
	f.tick(i.RetryAt - time.Nanosecond - f.now)
	if i.State != Reconnecting || len(f.dials) != dials {
		t.Errorf("while it waits: %+v, dialled %d times", i, len(f.dials)-dials)
	}
	if f.tick(time.Nanosecond); len(f.dials) != dials+1 || p.Info().RetryAt != 0 {
		t.Errorf("when it is time: %+v, dialled %d times", p.Info(), len(f.dials)-dials)
	}
	if f.c.Name() != "a name" || f.c.UUID() == [16]byte{} {
		t.Errorf("%q, %x", f.c.Name(), f.c.UUID())
	}
}

// TestPathsOfAnEndedSession: a session that has ended takes no more paths, and says why it ended.
func TestPathsOfAnEndedSession(t *testing.T) {
	f, p := upClient(t, ClientConfig{})
	if err := p.Received(f.now, 0, rtrswire.Notice{Type: rtrswire.RefusedType, Errno: 116}.Append(nil), 0, false); err != nil {
		t.Fatal(err)
	}
	p.Gone(f.now)
	f.tick(time.Minute)
	why := f.c.Err()
	_, err := f.c.AddPath(f.now, nil, netip.AddrPort{}, netip.MustParseAddrPort("10.0.0.9:16386"))
	if why == nil || err == nil || !errors.Is(err, why) && err.Error() != why.Error() {
		t.Errorf("the session ended with %v; another path: %v", why, err)
	}
}

// TestOneConnectionHangs: a connection that answers nothing is noticed when ConnTimeout is over, to
// the heartbeat, although the other answers: the first always, the second while something is
// awaited on it.
func TestOneConnectionHangs(t *testing.T) {
	const every, limit = 200 * time.Millisecond, 800 * time.Millisecond
	for silent := range 2 {
		f, p := upClient(t, ClientConfig{HeartbeatEvery: every, ConnTimeout: limit})
		f.submit(Read, make([]byte, 512))
		if p.cons[1].flight != 1 {
			t.Fatal("the request is not on the second connection")
		}
		asked := Never
		for p.State() == Connected && f.now < 10*time.Second {
			f.posts = nil
			f.tick(time.Millisecond)
			for _, o := range f.posts {
				if rtrswire.Imm(o.op.Imm) != rtrswire.ImmHeartbeat {
					continue
				}
				if o.conn == silent {
					asked = min(asked, f.now)
				} else if err := p.Written(f.now, o.conn, transport.Placed{Known: true, Imm: uint32(rtrswire.ImmHeartbeatAck)}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if took := f.now - asked; took != limit {
			t.Errorf("connection %d: noticed %v after it was asked, want %v; the path is %v", silent, took, limit, p.State())
		}
	}
}

// TestLittleRoomForHeaders: a server whose chunks have no room for the headers of a request is not
// connected to: its numbers would have a request laid out beyond its chunk.
func TestLittleRoomForHeaders(t *testing.T) {
	for _, c := range []struct {
		hdr uint32
		ok  bool
	}{{minHdr, true}, {minHdr - 1, false}, {rtrswire.ReadLen + rtrswire.DescLen, false}} {
		f := newFakeClient(t, ClientConfig{})
		p := f.add(1)
		chunks := chunksOf(4, 64, c.hdr)
		for i := range f.c.cfg.Conns {
			p.Dialed(f.now, i, rsp(chunks, ours))
		}
		if p.State() == Connecting {
			if err := p.Received(f.now, 0, info(chunks, 7), 0, false); err != nil {
				t.Fatal(err)
			}
			// What would be beyond the chunk.
			r := &Req{Op: Read, Usr: make([]byte, MaxUsr), Data: make([]byte, 64)}
			if err := f.c.Submit(f.now, r); err != nil {
				t.Fatal(err)
			}
		}
		if _, violated := lastEvent(f.events, EventViolation); violated == c.ok {
			t.Errorf("%d bytes for headers: a violation %v, the path is %v", c.hdr, violated, p.State())
		}
	}
}
