package rtrs

import (
	"bytes"
	"testing"

	"github.com/rdsd/rdsd/transport"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// A peer that asks and does not read: what is posted for it waits in this side's memory.

const asked = 20000 // times, far more than may wait

func beat(i rtrswire.Imm) transport.Placed { return transport.Placed{Known: true, Imm: uint32(i)} }

// TestServerBeatsUnread: of the answers to heartbeats one waits on each connection, in each
// state that answers them; when it is sent the next follows, for all that came meanwhile.
func TestServerBeatsUnread(t *testing.T) {
	f := newFakeServer(t, smallServer)
	p, _ := f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
	q := f.dial(someone{session: 2, path: 2, attempt: 1, addr: 2, name: "b"}, 0, 2).Path // Connecting
	f.late = true
	for _, at := range []struct {
		p    *ServerPath
		conn int
	}{{p, 0}, {p, 1}, {q, 0}} {
		f.posts = nil
		for range asked {
			if err := at.p.Written(f.now, at.conn, beat(rtrswire.ImmHeartbeat)); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(f.posts); n != 1 {
			t.Fatalf("%d answers wait on connection %d of a path that is %v", n, at.conn, at.p.State())
		}
		at.p.Sent(f.now, at.conn, int(at.p.cons[at.conn].posted-at.p.cons[at.conn].sent))
		if n := len(f.posts); n != 2 {
			t.Fatalf("%d answers when the first is sent", n)
		}
		at.p.Sent(f.now, at.conn, 1)
		if n := len(f.posts); n != 2 {
			t.Fatalf("%d answers to nothing", n-2)
		}
		if at.p.Written(f.now, at.conn, beat(rtrswire.ImmHeartbeat)); len(f.posts) != 3 {
			t.Fatal("no answer to the next")
		}
	}
}

// TestClientBeatsUnread is TestServerBeatsUnread on the other side.
func TestClientBeatsUnread(t *testing.T) {
	f, p := upClient(t, ClientConfig{})
	f.late, f.posts = true, nil
	for range asked {
		if err := p.Written(f.now, 1, beat(rtrswire.ImmHeartbeat)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(f.posts); n != 1 {
		t.Fatalf("%d answers wait", n)
	}
	p.Sent(f.now, 1, 1)
	if p.Sent(f.now, 1, 1); len(f.posts) != 2 {
		t.Fatalf("%d answers when the first is sent", len(f.posts))
	}
}

// TestAnswersUnread: who goes on asking for anything else, and takes no answer, is given up
// while few wait.
func TestAnswersUnread(t *testing.T) {
	few := 4*4 + maxOwn + 8
	fence := rtrswire.Fence{Type: rtrswire.FenceType, Attempt: 1}
	fence.Path[0] = 99 // a path that nobody knows: it has ended
	for name, do := range map[string]func(t *testing.T) (ask func() error, posts *[]posted){
		"fences": func(t *testing.T) (func() error, *[]posted) {
			f := newFakeServer(t, smallServer)
			p, _ := f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
			f.late = true
			return func() error { return p.Received(f.now, 0, fence.Append(nil), 0, false) }, &f.posts
		},
		"requests without keys of their own": func(t *testing.T) (func() error, *[]posted) {
			cfg := smallServer
			cfg.NoInvalidate = true
			f := newFakeServer(t, cfg)
			f.request = func(r *ServerReq) { f.s.Reply(f.now, r, len(r.Data), nil) }
			p, ds := f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
			f.late = true
			data := bytes.Repeat([]byte{1}, 512)
			return func() error { return f.put(p, 1, ds, 2, Read, data) }, &f.posts
		},
		"rests": func(t *testing.T) (func() error, *[]posted) {
			f, p := upClient(t, ClientConfig{})
			f.late = true
			rest := rtrswire.Notice{Type: rtrswire.RestType}
			return func() error { return p.Received(f.now, 0, rest.Append(nil), 0, false) }, &f.posts
		},
	} {
		t.Run(name, func(t *testing.T) {
			ask, posts := do(t)
			*posts = nil
			var err error
			for range asked {
				if err = ask(); err != nil {
					break
				}
			}
			wantErr(t, err, ErrProtocol)
			if n := len(*posts); n < maxOwn || n > few {
				t.Errorf("%d answers wait, and %d may", n, few)
			}
		})
	}
}

// TestFencingLooks: heartbeats' answers that were not asked for, and fences, are not each a
// look at all that wait.
func TestFencingLooks(t *testing.T) {
	f := newFakeServer(t, smallServer)
	f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
	// A kernel cannot be asked whether it lives, and waits for the end of the session of its name.
	k := f.join(someone{session: 2, path: 2, attempt: 1, addr: 1, name: "a", kernel: true})
	// An rdsd is asked once; that it has answered before it was is nothing.
	c := f.dial(someone{session: 3, path: 3, attempt: 1, addr: 1, name: "a"}, 0, 1).Path
	if k.State() != Fencing {
		t.Fatalf("the kernel's path is %v", k.State())
	}
	for _, p := range []*ServerPath{k, c} {
		f.s.busy++ // as if within a call, whose end would look
		err := p.Written(f.now, 0, beat(rtrswire.ImmHeartbeatAck))
		looks := f.s.pathEnded
		f.s.busy--
		if err != nil || looks || p.acks != 0 {
			t.Errorf("an answer to nothing while the path is %v: a look %v, answers %d, %v", p.State(), looks, p.acks, err)
		}
	}
	g, _, _ := atStore(t, smallServer)
	q, _ := g.up(someone{session: 1, path: 2, attempt: 1, addr: 2, name: "a", late: true})
	m := rtrswire.Fence{Type: rtrswire.FenceType, Attempt: 1}
	m.Path[0] = 1
	for i := range 3 {
		m.Attempt = uint16(1 + i)
		g.s.busy++
		err := q.Received(g.now, 0, m.Append(nil), 0, false)
		looks := g.s.pathEnded
		g.s.busy--
		g.s.Tick(g.now) // what the first has ended is looked at
		if err != nil || looks != (i == 0) || g.s.waiting() != i+1 {
			t.Errorf("fence %d: a look %v, %d wait, %v", i, looks, g.s.waiting(), err)
		}
	}
	// Those of all paths of a session count together.
	r, _ := g.up(someone{session: 1, path: 3, attempt: 1, addr: 2, name: "a", late: true})
	for i := range 4*g.s.cfg.MaxPaths - 3 {
		m.Attempt++
		if err := r.Received(g.now, 0, m.Append(nil), 0, false); err != nil {
			t.Fatalf("fence %d of another path: %v", i, err)
		}
	}
	m.Attempt++
	wantErr(t, q.Received(g.now, 0, m.Append(nil), 0, false), ErrProtocol)
}

// TestTwiceOnAnotherPath: a kernel's client sends what it had on a lost path again on another one; a
// second request in that chunk there ends that path too, and none of them begins at the store.
func TestTwiceOnAnotherPath(t *testing.T) {
	cfg := smallServer
	cfg.NoInvalidate = true // the key is good for a second write
	f := newFakeServer(t, cfg)
	p, ds := f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a", kernel: true})
	q, dq := f.up(someone{session: 1, path: 2, attempt: 1, addr: 2, name: "a", kernel: true, late: true})
	f.up(someone{session: 1, path: 3, attempt: 1, addr: 3, name: "a", kernel: true, late: true})
	data := bytes.Repeat([]byte{1}, 512)
	if err := f.put(p, 1, ds, 2, Write, data); err != nil {
		t.Fatal(err)
	}
	old := one(t, f.reqs)
	if err := f.put(q, 1, dq, 2, Write, data); err != nil || p.State() != Closing {
		t.Fatalf("sent again on another path: %v, the first is %v", err, p.State())
	}
	wantErr(t, f.put(q, 1, dq, 2, Write, data), ErrProtocol)
	if q.State() != Closing {
		t.Fatalf("the path is %v", q.State())
	}
	q.Gone(f.now)
	p.Gone(f.now)
	f.s.Reply(f.now, old, 0, nil)
	if len(f.reqs) != 1 || q.State() != Dead || q.inflight != 0 {
		t.Errorf("%d requests at the store, the path is %v with %d", len(f.reqs), q.State(), q.inflight)
	}
}
