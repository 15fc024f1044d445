package rtrs

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

var smallServer = ServerConfig{QueueDepth: 4, MaxIO: 8192, MaxHdr: 512}

func TestServerConfig(t *testing.T) {
	for bad, c := range map[string]ServerConfig{
		"queue depth 4096":      {QueueDepth: 4096},
		"queue depth -1":        {QueueDepth: -1},
		"chunks of 100 bytes":   {MaxIO: 100},
		"and 99 of headers":     {MaxHdr: 99},
		"heartbeats every 1h":   {HeartbeatEvery: time.Hour},
		"at most -1 sessions":   {MaxSessions: -1},
		"129 paths":             {MaxPaths: 129},
		"can be negative":       {TrimAfter: -1},
		"at most 131072 go wit": {QueueDepth: 2048},
	} {
		if _, err := NewServer(c, &fakeServer{}, 1, 0); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("%+v: %v does not say %q", c, err, bad)
		}
	}
	s := newFakeServer(t, ServerConfig{}).s
	if s.chunks.Depth != 512 || s.chunks.MaxIO != 256<<10 || s.chunks.MaxHdr != 4096 {
		t.Errorf("%+v", s.chunks)
	}
}

// TestConnectRefused: each reason with its errno.
func TestConnectRefused(t *testing.T) {
	a := someone{session: 1, path: 1, attempt: 3, addr: 1, name: "a"}
	cases := map[string]struct {
		do   func(f *fakeServer)
		want syscall.Errno
	}{
		"no message": {func(f *fakeServer) {
			f.s.Connect(0, nil, []byte("hello"), netip.AddrPort{}, netip.AddrPort{})
		}, syscall.ECONNRESET},
		"no connection 0":        {func(f *fakeServer) { f.dial(a, 1, 2) }, syscall.ECONNRESET},
		"a connection twice":     {func(f *fakeServer) { f.dial(a, 0, 2); f.dial(a, 0, 2) }, syscall.ECONNRESET},
		"another number of them": {func(f *fakeServer) { f.dial(a, 0, 2); f.dial(a, 1, 3) }, syscall.ECONNRESET},
		"a connected path":       {func(f *fakeServer) { f.up(a); f.dial(a, 1, 2) }, syscall.ECONNRESET},
		"an older attempt":       {func(f *fakeServer) { f.up(a); b := a; b.attempt = 2; f.dial(b, 0, 2) }, syscall.ECONNRESET},
		"from another address":   {func(f *fakeServer) { f.dial(a, 0, 2); b := a; b.addr = 9; f.dial(b, 1, 2) }, syscall.ECONNRESET},
		"too many connections": {func(f *fakeServer) {
			f.s.cfg.MaxConns = 4 // half of them for one address
			f.up(a)
			b := a
			b.path, b.addr = 2, 2
			f.up(b)
			b.session, b.path, b.addr = 3, 3, 3
			f.dial(b, 0, 1)
		}, syscall.EMFILE},
		"too many of them from one place": {func(f *fakeServer) {
			f.s.cfg.MaxConns = 6
			f.up(a)
			b := a
			b.path = 2
			f.dial(b, 0, 2)
		}, syscall.EMFILE},
		"more than there may be": {func(f *fakeServer) {
			f.s.cfg.MaxConns = 300
			f.dial(a, 0, 151)
		}, syscall.EMFILE},
		"another connection of too many": {func(f *fakeServer) {
			f.dial(a, 0, 3)
			f.s.cfg.MaxConns = 1
			f.dial(a, 1, 3)
		}, syscall.EMFILE},
		"a kernel's path between the same addresses": {func(f *fakeServer) {
			k := a
			k.kernel = true
			f.up(k)
			k.path, k.late = 2, true
			f.dial(k, 0, 2)
		}, syscall.EEXIST},
		"another of them while the first is made": {func(f *fakeServer) {
			k := a
			k.kernel = true
			f.dial(k, 0, 2)
			k.path = 2
			f.dial(k, 0, 2)
		}, syscall.EEXIST},
		"of an unknown session": {func(f *fakeServer) { b := a; b.late = true; f.dial(b, 0, 2) }, syscall.ENXIO},
		"too many paths": {func(f *fakeServer) {
			f.up(a)
			b := a
			b.path = 2
			f.up(b)
			b.path = 3
			f.dial(b, 0, 2)
		}, syscall.EMFILE},
		"too many from one place": {func(f *fakeServer) { many(f, 33, func(int) byte { return 1 }) }, syscall.EMFILE},
		"too many at once":        {func(f *fakeServer) { many(f, 65, func(i int) byte { return byte(i % 64) }) }, syscall.EMFILE},
		"closed":                  {func(f *fakeServer) { f.s.Close(0); f.dial(a, 0, 2) }, syscall.ESHUTDOWN},
	}
	for name, c := range cases {
		cfg := smallServer
		cfg.MaxPaths, cfg.MaxSessions = 2, 64
		f := newFakeServer(t, cfg)
		c.do(f)
		if len(f.rejected) != 1 || syscall.Errno(f.rejected[0]) != c.want || f.s.Stats().Refused != 1 {
			t.Errorf("%s: rejected with %v, want %v", name, f.rejected, uint16(c.want))
		}
		if e, ok := lastEvent(f.events, EventRefused); !ok || e.Err == nil {
			t.Errorf("%s: no event", name)
		}
	}
}

// TestCrowdedOut: where all places of paths that are of no session yet are taken, the address that
// has most of them makes room for one that has fewer: its oldest goes, and nobody else's.
func TestCrowdedOut(t *testing.T) {
	cfg := smallServer
	cfg.MaxSessions = 64
	f := newFakeServer(t, cfg)
	at := func(i int) byte { return byte(1 + i%2) }
	many(f, 63, at) // 32 of one, 31 of another
	first := f.s.Paths()
	newcomer := someone{session: 100, path: 1, attempt: 1, addr: 3, name: "c"}
	f.dial(newcomer, 0, 2) // the last place
	// One that is refused anyway gets nobody out.
	wrong := newcomer
	wrong.session, wrong.late = 90, true
	f.dial(wrong, 0, 2)
	if len(f.rejected) != 1 || syscall.Errno(f.rejected[0]) != syscall.ENXIO || first[0].State() >= Closing {
		t.Fatalf("of an unknown session: rejected with %v, the oldest path is %v", f.rejected, first[0].State())
	}
	f.rejected = nil
	for i := range 4 {
		newcomer.session++
		f.dial(newcomer, 0, 2)
		if len(f.rejected) > 0 {
			t.Fatalf("%v, with %d paths of its own", syscall.Errno(f.rejected[0]), i+1)
		}
	}
	for i, p := range first {
		// The first of 32 goes, then those of both in turn.
		if gone := i < 4; gone != (p.State() >= Closing) {
			t.Errorf("path %d is %v", i, p.State())
		}
	}
	if err := first[0].Info().Err; !errors.Is(err, ErrTooMany) {
		t.Errorf("the first went because of %v", err)
	}
}

// TestRequestsInFalseNames: who only asks, in whatever names, and says nothing further, keeps nobody
// out: what it announces does not count, and the oldest that it has makes room.
func TestRequestsInFalseNames(t *testing.T) {
	cfg := smallServer
	cfg.MaxSessions = 64
	newcomer := someone{session: 100, path: 1, attempt: 1, addr: 100, name: "c"}
	for name, c := range map[string]struct {
		maxConns int // 0: as many as there may be
		ask      func(f *fakeServer)
		from     byte // the newcomer's address
		gone     []int
	}{
		"four times 4096 connections of each of two addresses": {0, func(f *fakeServer) {
			for i := range byte(8) {
				f.dial(someone{session: i, path: 1, attempt: 1, addr: 1 + i%2}, 0, 4096)
			}
		}, 100, nil},
		"a path of each of 64 addresses": {0, func(f *fakeServer) { many(f, 64, func(i int) byte { return byte(i) }) }, 100, []int{0}},
		"all connections": {8, func(f *fakeServer) {
			for i := range byte(4) {
				for conn := range uint16(2) {
					f.dial(someone{session: i, path: 1, attempt: 1, addr: i}, conn, 3)
				}
			}
		}, 100, []int{0}}, // with two connections
		"all of the newcomer's address": {8, func(f *fakeServer) {
			for i := range byte(5) {
				f.dial(someone{session: i, path: 1, attempt: 1, addr: min(i, 1)}, 0, 3)
			}
		}, 1, []int{1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg.MaxConns = c.maxConns
			f := newFakeServer(t, cfg)
			c.ask(f)
			old := f.s.Paths()
			if len(f.rejected) > 0 {
				t.Fatalf("rejected with %v before anybody comes", f.rejected)
			}
			newcomer.addr = c.from
			f.up(newcomer)
			var gone []int
			for i, p := range old {
				if p.State() >= Closing {
					gone = append(gone, i)
					wantErr(t, p.Info().Err, ErrTooMany)
				}
			}
			if !slices.Equal(gone, c.gone) {
				t.Errorf("of %d that only asked %v were given up, want %v", len(old), gone, c.gone)
			}
		})
	}
}

// many dials n sessions.
func many(f *fakeServer, n int, addr func(i int) byte) {
	for i := range n {
		f.dial(someone{session: byte(i + 1), path: 1, attempt: 1, addr: addr(i)}, 0, 2)
	}
}

// TestRefusedByMessage: what is wrong is known only with the session's name.
func TestRefusedByMessage(t *testing.T) {
	a := someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"}
	refused := func(f *fakeServer, p *ServerPath, want syscall.Errno) {
		t.Helper()
		o := one(t, f.take())
		n, err := rtrswire.ParseNotice(o.bytes)
		if err != nil || n.Type != rtrswire.RefusedType || syscall.Errno(n.Errno) != want || o.path != p || p.State() != Closing || len(f.hung) != 0 {
			t.Fatalf("%+v, %v, the path is %v, %d hung", n, err, p.State(), len(f.hung))
		}
		f.tick(farewell) // it has had time to read it
		if one(t, f.hung) != p {
			t.Fatal("not hung up")
		}
		p.Gone(f.now)
		if p.State() != Dead {
			t.Fatal(p.State())
		}
	}
	f := newFakeServer(t, smallServer)
	f.up(a)
	refused(f, f.join(someone{session: 2, path: 2, attempt: 1, addr: 2, name: "a"}), syscall.EPERM)
	f = newFakeServer(t, smallServer)
	f.up(a)
	refused(f, f.join(someone{session: 1, path: 2, attempt: 1, addr: 1, name: "b"}), syscall.EINVAL)
	f = newFakeServer(t, smallServer)
	f.noMem = true
	refused(f, f.join(a), syscall.ENOMEM)
	cfg := smallServer
	cfg.MaxSessions = 1
	f = newFakeServer(t, cfg)
	f.up(a)
	refused(f, f.join(someone{session: 2, path: 1, attempt: 1, addr: 2, name: "b"}), syscall.EMFILE)
	// A kernel does not know the message: it is hung up.
	f = newFakeServer(t, smallServer)
	f.up(a)
	p := f.join(someone{session: 2, path: 2, attempt: 1, addr: 2, name: "a", kernel: true})
	if len(f.take()) != 0 || one(t, f.hung) != p {
		t.Fatal("a kernel was told")
	}
	// One that hangs up when it has read it need not be waited for.
	f = newFakeServer(t, smallServer)
	f.up(a)
	p = f.join(someone{session: 2, path: 2, attempt: 1, addr: 2, name: "a"})
	p.Lost(0, 0, rdserr.ErrReset)
	if one(t, f.hung) != p {
		t.Fatal("not hung up")
	}
}

// TestHalfOfTheSessionsFromOneAddress: names cost nothing. Who has taken half of the places is
// refused, and others have theirs.
func TestHalfOfTheSessionsFromOneAddress(t *testing.T) {
	cfg := smallServer
	cfg.MaxSessions = 5
	f := newFakeServer(t, cfg)
	n := byte(0)
	from := func(addr byte) (p *ServerPath, errno syscall.Errno) {
		n++
		p = f.join(someone{session: n, path: n, attempt: 1, addr: addr, name: string(rune('a' + n))})
		for _, o := range f.take() {
			if m, err := rtrswire.ParseNotice(o.bytes); err == nil && m.Type == rtrswire.RefusedType {
				errno = syscall.Errno(m.Errno)
			}
		}
		return p, errno
	}
	var first *ServerPath
	for i := range 3 {
		p, errno := from(1)
		if p.State() != Connected || errno != 0 {
			t.Fatalf("session %d of 5 is %v, errno %d", i+1, p.State(), errno)
		}
		first = p
	}
	if p, errno := from(1); p.State() == Connected || errno != syscall.EMFILE {
		t.Errorf("the fourth of one address is %v, errno %d", p.State(), errno)
	}
	for range 2 {
		if p, _ := from(2); p.State() != Connected {
			t.Fatalf("another address finds no place: %v", p.State())
		}
	}
	first.Lost(f.now, 0, rdserr.ErrReset)
	first.Gone(f.now)
	if p, _ := from(1); p.State() != Connected {
		t.Errorf("one of its own has ended, and the next is %v", p.State())
	}
}

// TestHandshake: the INFO_REQ is due within a time, and after all connections.
func TestHandshake(t *testing.T) {
	a := someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"}
	f := newFakeServer(t, smallServer)
	p := f.dial(a, 0, 2).Path
	if f.dial(a, 1, 2).Path != p || len(p.cons) != 2 || p.cons[1].ServerCon == nil || p.Session() != nil {
		t.Fatal("not of one path")
	}
	f.tick(5 * time.Second)
	if p.State() != Closing || p.Info().Err != error(ErrTimeout) || one(t, f.hung) != p {
		t.Fatal(p.State())
	}
	p.Gone(f.now)
	if len(f.s.Paths()) != 0 || f.s.Next() != Never {
		t.Fatalf("%d paths left, next %v", len(f.s.Paths()), f.s.Next())
	}
	f = newFakeServer(t, smallServer)
	p = f.dial(a, 0, 2).Path
	b, _ := rtrswire.AppendInfoReq(nil, "a")
	if err := p.Received(0, 0, b, 0, false); err == nil || p.State() != Closing {
		t.Error("an INFO_REQ before the second connection")
	}
	f = newFakeServer(t, smallServer)
	p = f.dial(a, 0, 2).Path
	p.Lost(0, 0, rdserr.ErrReset)
	if p.State() != Closing || len(f.hung) != 1 {
		t.Error("lost while connecting")
	}
}

// TestServerIO: a write and a read, with what is posted for them.
func TestServerIO(t *testing.T) {
	f := newFakeServer(t, smallServer)
	p, ds := f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
	if err := f.put(p, 1, ds, 2, Write, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	r := one(t, f.reqs)
	if r.Op != Write || string(r.Data) != "hello" || string(r.Usr) != "user-hdr" || r.Seq != 1 || r.Path != p || cap(r.Data) != 5 || p.Info().Stats.Inflight != 1 {
		t.Fatalf("%+v", r)
	}
	f.s.Reply(0, r, 0, rdserr.With(rdserr.ErrIO, "the disk is gone"))
	o := one(t, f.take())
	if rtrswire.Imm(o.op.Imm) != rtrswire.Done(2, uint16(syscall.EIO), false) || o.conn != 1 {
		t.Fatalf("%+v", o)
	}
	rk, _ := rtrswire.ParseRKeyRsp(o.bytes)
	ds[2].Key = rk.Key
	if err := f.put(p, 1, ds, 2, Read, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	r = f.reqs[1]
	copy(r.Data, strings.Repeat("x", 100))
	f.s.Reply(0, r, 40, nil)
	ps := f.take()
	if len(ps) != 2 || ps[0].op.Kind != transport.OpWrite || !bytes.Equal(ps[0].bytes, append(bytes.Repeat([]byte{'x'}, 40), make([]byte, 60)...)) || ps[0].op.Addr != 0xabc000 || ps[0].op.Key != 0x77 {
		t.Fatalf("%+v", ps)
	}
	if s := p.Info().Stats; s != (ServerPathStats{Reads: 1, ReadBytes: 108, Writes: 1, WriteBytes: 13, Errors: 1}) {
		t.Errorf("%+v", s)
	}
	p.ResetStats()
	if s := p.Info().Stats; s != (ServerPathStats{}) {
		t.Errorf("%+v", s)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("replied to twice")
			}
		}()
		r.Path, r.Session = p, f.ups[0]
		f.s.Reply(0, r, 0, nil)
	}()
}

// TestBadRequests: an errno and the permit back, or the path closed; nothing
// reaches the user.
func TestBadRequests(t *testing.T) {
	le := func(vs ...uint16) (b []byte) {
		for _, v := range vs {
			b = append(b, byte(v), byte(v>>8))
		}
		return b
	}
	desc := rtrswire.Desc{Addr: 1, Key: 2, Len: 64}.Append
	for name, c := range map[string]struct {
		at, off uint32
		b       []byte
		want    syscall.Errno // 0: the path is given up
	}{
		"user header too long":         {0, 8, append(make([]byte, 8), le(2, 9)...), syscall.EINVAL},
		"two descriptors":              {64, 64, append(le(3, 0, 1, 2), make([]byte, 32)...), syscall.EINVAL},
		"empty descriptor":             {64, 64, rtrswire.Desc{Addr: 1}.Append(le(3, 0, 1, 1)), syscall.EINVAL},
		"descriptor longer than data":  {63, 63, desc(le(3, 0, 1, 1)), syscall.EINVAL},
		"more data than the largest":   {0, 8200, append(make([]byte, 8200), le(2, 0)...), syscall.EINVAL},
		"message beyond the end":       {8600, 8702, make([]byte, 104), syscall.EINVAL},
		"data that was not sent":       {100, 128, append(make([]byte, 28), le(2, 0)...), syscall.EINVAL},
		"bytes behind the message":     {0, 8, append(make([]byte, 8), le(2, 0, 0, 0)...), syscall.EINVAL},
		"read that sends data":         {0, 64, append(make([]byte, 64), desc(le(3, 0, 1, 1))...), syscall.EINVAL},
		"user header of 489 bytes":     {64, 64 + 489, append(make([]byte, 489), desc(le(3, 489, 1, 1))...), syscall.EMSGSIZE},
		"unknown type":                 {0, 8, append(make([]byte, 8), le(7, 0)...), 0},
		"message outside what is sent": {0, 200, make([]byte, 64), 0}, // type 0: what the chunk held
	} {
		f := newFakeServer(t, smallServer)
		p, ds := f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
		err := f.write(p, 1, ds, 1, c.at, c.off, c.b)
		if len(f.reqs) != 0 {
			t.Errorf("%s: it reached the user", name)
		}
		if c.want == 0 {
			if err == nil || p.State() != Closing {
				t.Errorf("%s: %v, the path is %v", name, err, p.State())
			}
			continue
		}
		ps := f.take()
		if err != nil || len(ps) != 1 || rtrswire.Imm(ps[0].op.Imm) != rtrswire.Done(1, uint16(c.want), false) || p.Info().Stats.Inflight != 0 {
			t.Errorf("%s: %v, %+v", name, err, ps)
			continue
		}
		rk, _ := rtrswire.ParseRKeyRsp(ps[0].bytes)
		ds[1].Key = rk.Key
		if err := f.put(p, 1, ds, 1, Write, []byte("good")); err != nil || len(f.reqs) != 1 {
			t.Errorf("%s: then a good one: %v, %d", name, err, len(f.reqs))
		}
	}
}

// TestServerViolations: what a client can do wrong gives its path up.
func TestServerViolations(t *testing.T) {
	type world struct {
		f  *fakeServer
		p  *ServerPath
		ds []rtrswire.Desc
	}
	put := func(w world, id uint32, key uint32, addr uint64, n int) error {
		return w.p.Written(0, 1, transport.Placed{Known: true, Key: key, Addr: addr, N: n, Imm: uint32(w.f.s.chunks.Req(id, 8))})
	}
	fence := func(w world, path byte, attempt uint16) error {
		m := rtrswire.Fence{Type: rtrswire.FenceType, Attempt: attempt}
		m.Path[0] = path
		return w.p.Received(0, 0, m.Append(nil), 0, false)
	}
	// A request that is right, at the beginning of chunk 0: but for the immediate.
	good := func(w world, imm uint32) error {
		m := rtrswire.Req{Type: rtrswire.Write}
		b := m.Append(nil)
		d := w.ds[0]
		copy(w.f.regions[d.Key].b[d.Addr-w.f.regions[d.Key].addr:], b)
		return w.p.Written(0, 1, transport.Placed{Known: true, Key: d.Key, Addr: d.Addr, N: len(b), Imm: imm})
	}
	for name, do := range map[string]func(w world) error{
		"a chunk beyond the depth": func(w world) error {
			w.f.s.chunks = chunksOf(3, 8192, 512)
			return good(w, 3<<w.f.s.chunks.MemBits())
		},
		"a message beyond the chunk": func(w world) error { return good(w, w.f.s.chunks.Size()) },
		"another chunk's key":        func(w world) error { return put(w, 1, w.ds[2].Key, w.ds[2].Addr, 12) },
		"a wrong key":                func(w world) error { return put(w, 1, 0xbad, w.ds[1].Addr, 12) },
		"an old key": func(w world) error {
			k := w.ds[1].Key
			if err := w.f.put(w.p, 1, w.ds, 1, Write, nil); err != nil {
				return nil
			}
			w.f.s.Reply(0, w.f.reqs[0], 0, nil)
			return put(w, 1, k, w.ds[1].Addr, 12)
		},
		"before the chunk": func(w world) error { return put(w, 1, w.ds[1].Key, w.ds[1].Addr-1, 12) },
		"beyond the chunk": func(w world) error { return put(w, 1, w.ds[1].Key, w.ds[1].Addr+8700, 12) },
		"nothing written":  func(w world) error { return put(w, 1, w.ds[1].Key, w.ds[1].Addr, 0) },
		"two in one chunk": func(w world) error {
			if w.f.put(w.p, 1, w.ds, 1, Write, nil) != nil {
				return nil
			}
			return put(w, 1, w.ds[1].Key, w.ds[1].Addr, 12)
		},
		"still writing": func(w world) error { w.f.how = transport.Busy; return w.f.put(w.p, 1, w.ds, 1, Write, nil) },
		"revokes":       func(w world) error { return w.p.Invalidated(0, 1, 5, 0) },
		"send with an immediate": func(w world) error {
			return w.p.Received(0, 0, make([]byte, 8), 1, true)
		},
		"send on connection 1": func(w world) error { return w.p.Received(0, 1, make([]byte, 8), 0, false) },
		"a second INFO_REQ": func(w world) error {
			b, _ := rtrswire.AppendInfoReq(nil, "a")
			return w.p.Received(0, 0, b, 0, false)
		},
		"unknown message": func(w world) error { return w.p.Received(0, 0, []byte{0xff, 0xff, 0}, 0, false) },
		"empty message":   func(w world) error { return w.p.Received(0, 0, nil, 0, false) },
		"rested, not asked": func(w world) error {
			return w.p.Received(0, 0, rtrswire.Notice{Type: rtrswire.RestedType}.Append(nil), 0, false)
		},
		"fence cut off":       func(w world) error { return w.p.Received(0, 0, []byte{1, 0x80, 0}, 0, false) },
		"fence of itself":     func(w world) error { return fence(w, 1, 1) },
		"fence of the coming": func(w world) error { return fence(w, 1, 5) },
	} {
		f := newFakeServer(t, smallServer)
		p, ds := f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
		if err := do(world{f, p, ds}); err == nil || p.State() != Closing || f.s.Stats().Violated != 1 {
			t.Errorf("%s: %v, the path is %v", name, err, p.State())
		}
	}
	ok := newFakeServer(t, smallServer)
	p, ds := ok.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
	if err := good(world{ok, p, ds}, 0); err != nil || len(ok.reqs) != 1 {
		t.Errorf("what is right but for the immediate is not with the right one: %v, %d requests", err, len(ok.reqs))
	}
	// A request before the path is connected; an answer to nothing is ignored.
	f := newFakeServer(t, smallServer)
	p = f.dial(someone{session: 1, path: 1, attempt: 1, addr: 1}, 0, 2).Path
	if err := p.Written(0, 0, transport.Placed{Known: true, N: 12, Imm: 8}); err == nil || p.State() != Closing {
		t.Error("a request while connecting")
	}
}

// TestServerCloses: paths, sessions, the whole.
func TestServerCloses(t *testing.T) {
	f := newFakeServer(t, smallServer)
	a := someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"}
	p, ds := f.up(a)
	b := a
	b.path, b.late = 2, true
	q, _ := f.up(b)
	ses := one(t, f.ups)
	if ses.UUID()[0] != 1 || len(ses.Paths()) != 2 || p.Session() != ses || len(f.s.Sessions()) != 1 || fmt.Sprint(p.Info().Session) != "a" {
		t.Fatalf("%+v", ses)
	}
	f.s.Disconnect(0, q)
	q.Gone(0)
	if len(f.downs) != 0 || len(ses.Paths()) != 1 {
		t.Fatal("down with a path left")
	}
	if one(t, f.stales) != ses {
		t.Fatal("it is not told that requests of a path may be stale")
	}
	f.put(p, 1, ds, 0, Write, nil)
	f.s.disconnectAll(0, ses)
	if one(t, f.downs) != ses || len(f.stales) != 1 || !f.reqs[0].Stale() {
		t.Fatal("its request is not stale")
	}
	p.Gone(0)
	if p.State() != Draining || f.live == 0 || len(f.s.Sessions()) != 0 || f.s.Stats().Inflight != 1 {
		t.Fatalf("%v, %+v", p.State(), f.s.Stats())
	}
	var at []*ServerReq
	if f.s.Each(func(r *ServerReq) { at = append(at, r) }); one(t, at) != f.reqs[0] {
		t.Fatal("its request is not at the store any more")
	}
	f.s.Close(0)
	if f.closed != 0 {
		t.Fatal("closed while a request is at the store")
	}
	f.take()
	f.s.Reply(0, f.reqs[0], 0, nil)
	if f.closed != 1 || f.live != 0 || len(f.take()) != 0 || p.State() != Dead {
		t.Fatalf("%d closed, %d bytes left, the path is %v", f.closed, f.live, p.State())
	}
	if len(f.regions) != 0 {
		t.Errorf("%d keys left", len(f.regions))
	}
	f.s.Close(0)
	f.s.Tick(Never - 1)
	if f.closed != 1 || f.s.Next() != Never {
		t.Errorf("it is told %d times that the server is closed, the next call is due at %v", f.closed, f.s.Next())
	}
}
