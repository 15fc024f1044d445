package rtrs

import (
	"bytes"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/transport"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
	"github.com/rdsd/rdsd/wire/wiretest"
)

// The kernel's own messages, captured (wire/rtrs/testdata/rtrs.txt), played to either
// end.

// captured is a message of the file: its bytes, its descriptors, and its other
// fields by name.
type captured struct {
	bytes  []byte
	descs  []string
	fields map[string]string
}

func (c captured) num(t *testing.T, name string) uint32 {
	t.Helper()
	n, err := strconv.ParseUint(c.fields[name], 0, 32)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(n)
}

// kernelMessages reads those with a capture, by kind and name.
func kernelMessages(t *testing.T) map[string]captured {
	all := map[string]captured{}
	for _, v := range wiretest.Read(t, "../wire/rtrs/testdata/rtrs.txt", "desc") {
		if v.Captured() {
			all[v.Kind+" "+v.Name] = captured{v.Hex, v.List, v.Fields}
		}
	}
	if len(all) < 60 {
		t.Fatalf("%d captured messages", len(all))
	}
	return all
}

// TestKernelServer: a client of ours and what a kernel's server said, with
// always_invalidate.
func TestKernelServer(t *testing.T) {
	k := kernelMessages(t)
	f := newFakeClient(t, ClientConfig{Name: "s1", RemoteInval: true})
	f.onUp = func() {}
	p := f.add(2)
	for i, name := range []string{"connreq first", "connreq second"} {
		want := bytes.Clone(k[name].bytes)
		got := f.dials[i].req
		copy(want[12:44], got[12:44]) // the numbers of path and session
		want[44] |= 2                 // our mark, which a kernel ignores
		if !bytes.Equal(got, want) {
			t.Errorf("CON_REQ %d\n%x\nwant %x", i, got, want)
		}
		p.Dialed(0, i, append(bytes.Clone(k["connrsp invalidate-on"].bytes), make([]byte, 140)...))
	}
	if o := one(t, f.take()); o.op.Kind != transport.OpSend || o.conn != 0 || !bytes.Equal(o.bytes, k["inforeq s1"].bytes) {
		t.Errorf("INFO_REQ %+v", o)
	}
	// Its heartbeat may come first.
	if err := p.Written(0, 0, transport.Placed{Known: true, Imm: uint32(rtrswire.ImmHeartbeat)}); err != nil || f.posts[0].op.Imm != uint32(rtrswire.ImmHeartbeatAck) {
		t.Fatalf("%v, %+v", err, f.posts)
	}
	f.posts = nil
	if err := p.Received(0, 0, k["inforsp 32-descriptors"].bytes, 0, false); err != nil {
		t.Fatal(err)
	}
	if f.ups != 1 || f.c.MaxIO() != 126976 || f.c.Depth() != 32 || p.fences() || f.c.generation != 0 {
		t.Fatalf("%d ups, %d bytes, depth %d", f.ups, f.c.MaxIO(), f.c.Depth())
	}

	// The requests that a kernel's client sent, sent by ours.
	play := func(name string, conn int, admin bool, key uint32, addr uint64, errno syscall.Errno, rkey string) {
		t.Helper()
		m := k["request "+name]
		data := m.num(t, "datalen")
		usr := m.bytes[:m.num(t, "usrlen")]
		r := &Req{Admin: admin, Usr: usr, Data: make([]byte, data)}
		if m.fields["type"] == "write" {
			r.Op = Write
		}
		if err := f.c.Submit(0, r); err != nil {
			t.Fatal(err)
		}
		o := one(t, f.take())
		got, want := o.bytes, bytes.Clone(m.bytes)
		if r.Op == Write {
			got = got[data:]
		} else if data > 0 {
			at := len(want) - 16
			copy(want[at:at+12], got[at:at+12]) // where our memory is
			addr += uint64(data)
		}
		if !bytes.Equal(got, want) || o.conn != conn || o.op.Kind != transport.OpWriteImm || o.op.Key != key || o.op.Addr != addr || o.op.Imm != m.num(t, "off") {
			t.Fatalf("%s: %+v\n%x\nwant %x", name, o, got, want)
		}
		imm := rtrswire.Done(0, uint16(errno), r.Op == Read && data > 0)
		if r.Op == Read && data > 0 {
			if f.keys[r.key] == nil {
				t.Fatal("the memory has no key")
			}
			delete(f.keys, r.key)
			if err := p.Invalidated(0, conn, r.key, int(data)); err != nil {
				t.Fatal(err)
			}
		}
		if len(f.done) != 0 {
			t.Fatal("done before the answer")
		}
		if err := p.Received(0, conn, k["rkeyrsp "+rkey].bytes, uint32(imm), true); err != nil {
			t.Fatal(err)
		}
		if d := one(t, f.done); d != r || errno == 0 && d.Err != nil || errno != 0 && d.Err != errno {
			t.Fatalf("%s: %v", name, d.Err)
		}
		f.done = nil
	}
	play("sess-info", 0, true, 0x3b4, 0xffff888006f00000, 0, "chunk-0")
	play("open", 0, true, 0x3b5, 0xffff888006f00000, syscall.ENOENT, "chunk-0-2")
	f.c.Resume(0)
	play("read-4096", 1, false, 0x3b6, 0xffff888006f00000, 0, "chunk-0")
	play("write-65536", 1, false, 0x3b5, 0xffff888006f00000, 0, "chunk-0-2")
	play("flush", 1, false, 0x3b6, 0xffff888006f00000, 0, "chunk-0")
	play("close", 0, true, 0x3b5, 0xffff888006f00000, 0, "chunk-0")
	if s := p.Info().Stats; s.Reads != 4 || s.ReadBytes != 36+36+264+56+32+4096+32 || s.Writes != 2 || s.WriteBytes != 32+65536+8 {
		t.Errorf("%+v", s)
	}
}

// TestKernelServerRetries: a kernel has ended a path that was silent for 35 s. What was in
// flight there goes on on another one after 40 s, and not before.
func TestKernelServerRetries(t *testing.T) {
	// Heartbeats that nobody answers do not end the other path.
	quiet := ClientConfig{Kernel: KernelTimes{HeartbeatEvery: time.Minute}}
	failing := quiet
	failing.OnLoss, failing.IOTimeout, failing.LossTimeout = Error, 10*time.Second, 10*time.Second
	for name, test := range map[string]struct {
		cfg     ClientConfig
		removed bool
	}{"wait": {quiet, false}, "removed": {quiet, true}, "error": {failing, false}} {
		t.Run(name, func(t *testing.T) {
			f := newFakeClient(t, test.cfg)
			p := f.add(1)
			f.connect(p, fourChunks, rtrswire.NewRKey, 0)
			q := f.add(2)
			f.connect(q, fourChunks, rtrswire.NewRKey, 0)
			f.take()
			r := f.submit(Write, make([]byte, 512))
			lost := one(t, f.take()).path.(*ClientPath)
			if test.removed {
				if err := f.c.Remove(f.now, lost); err != nil {
					t.Fatal(err)
				}
			} else {
				lost.Lost(f.now, 0, syscall.ECONNRESET)
			}
			lost.Gone(f.now)
			f.tick(40*time.Second - 1)
			if ps := f.take(); len(ps) != 0 || f.c.Stats().Unfenced != 0 {
				t.Fatalf("sent too early: %+v", ps)
			}
			if test.cfg.OnLoss == Error {
				// It failed and may still happen, so nothing is sent.
				wantErr(t, r.Err, ErrTimeout)
				r = f.submit(Write, nil)
				if len(f.take()) != 0 || f.c.ghosts != 1 {
					t.Fatal("sent beside a failed write that may still happen")
				}
			}
			f.tick(1)
			o := one(t, f.take())
			if s := f.c.Stats(); o.path == lost || s.Unfenced != 1 || s.Fences != 0 || f.c.ghosts != 0 || len(f.c.epochs) != 0 {
				t.Fatalf("%+v", s)
			}
			if err := f.answer(o, 0, 1); err != nil || r.Err != nil || f.done[len(f.done)-1] != r {
				t.Fatal(err, r.Err)
			}
			if what := f.c.broken(); what != "" {
				t.Fatal(what)
			}
		})
	}
}

// TestKernelServerWithoutFences: with RetryNever the only fence a kernel has is to connect the
// same path anew.
func TestKernelServerWithoutFences(t *testing.T) {
	f := newFakeClient(t, ClientConfig{Unfenced: RetryNever})
	p := f.add(1)
	f.connect(p, fourChunks, rtrswire.NewRKey, 0)
	q := f.add(2)
	f.connect(q, fourChunks, rtrswire.NewRKey, 0)
	f.take()
	r := f.submit(Write, make([]byte, 512))
	lost := one(t, f.take()).path.(*ClientPath)
	lost.Lost(f.now, 0, syscall.ECONNRESET)
	lost.Gone(f.now)
	if ps := f.take(); len(ps) != 0 || f.c.Stats().Stranded != 1 {
		t.Fatalf("a kernel was told %+v", ps)
	}
	r2 := f.submit(Write, nil) // others go on
	if o := one(t, f.take()); o.path == lost {
		t.Fatal("on a dead path")
	} else if err := f.answer(o, 0, 1); err != nil || r2.Err != nil || len(f.done) != 1 {
		t.Fatal(err, r2.Err)
	}
	for f.dials[len(f.dials)-1].p != lost || lost.State() != Connecting {
		f.tick(10 * 1e6)
		if f.now > 1e9 {
			t.Fatal("not connected anew")
		}
	}
	f.connect(lost, fourChunks, rtrswire.NewRKey, 0)
	for _, o := range f.take() {
		if o.op.Kind == transport.OpWriteImm {
			if err := f.answer(o, 0, 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(f.done) != 2 || r.Err != nil {
		t.Fatalf("%d done, %v", len(f.done), r.Err)
	}
	// Removed, it can never be fenced: its requests fail when they cannot arrive any more.
	f.submit(Write, nil)
	lost = one(t, f.take()).path.(*ClientPath)
	if err := f.c.Remove(f.now, lost); err != nil {
		t.Fatal(err)
	}
	lost.Gone(f.now)
	if len(f.done) != 2 || len(f.c.epochs) != 1 || lost.State() != Dead {
		t.Fatalf("%d done, %d epochs, the path is %v", len(f.done), len(f.c.epochs), lost.State())
	}
	f.tick(40 * time.Second)
	if len(f.done) != 3 || f.done[2].Err != ErrNoPath || f.c.ghosts != 0 || len(f.c.epochs) != 0 {
		t.Fatalf("%d done, %d ghosts", len(f.done), f.c.ghosts)
	}
}

// TestKernelClient: a server of ours and what a kernel's client said.
func TestKernelClient(t *testing.T) {
	k := kernelMessages(t)
	f := newFakeServer(t, ServerConfig{QueueDepth: 32, MaxIO: 126976, MaxHdr: 4096})
	local, remote := netip.MustParseAddrPort("10.9.0.2:1234"), netip.MustParseAddrPort("10.9.0.1:55410")
	for i, name := range []string{"connreq first", "connreq second"} {
		if c := f.s.Connect(0, nil, k[name].bytes, local, remote); c.Path == nil || c.Num != i {
			t.Fatalf("refused: %+v, %v", c, f.rejected)
		}
		want := bytes.Clone(k["connrsp invalidate-on"].bytes)
		want[16] |= rtrswire.Fences
		if !bytes.Equal(f.rsps[i], want) {
			t.Errorf("CON_RSP\n%x\nwant %x", f.rsps[i], want)
		}
	}
	p := f.accepted[0].Path
	if err := p.Received(0, 0, k["inforeq s1"].bytes, 0, false); err != nil {
		t.Fatal(err)
	}
	ses := one(t, f.ups)
	o := one(t, f.take())
	ds, err := rtrswire.ParseInfoRsp(o.bytes, f.s.chunks)
	if err != nil || len(ds) != 32 || ses.Name != "s1" || rtrswire.Generation(o.bytes) != 0 || len(o.bytes) != len(k["inforsp 32-descriptors"].bytes) {
		t.Fatalf("%v, %d descriptors", err, len(ds))
	}
	play := func(name string, conn int, err error, wantInv bool) {
		t.Helper()
		m := k["request "+name]
		data, usrLen := m.num(t, "datalen"), m.num(t, "usrlen")
		b, at := m.bytes, data
		if m.fields["type"] == "write" {
			b, at = append(bytes.Repeat([]byte{7}, int(data)), b...), 0
		}
		old := ds[3].Key
		if err := f.write(p, conn, ds, 3, at, m.num(t, "off"), b); err != nil {
			t.Fatal(err)
		}
		if _, still := f.regions[old]; still {
			t.Fatal("the key is valid while the chunk is used")
		}
		r := one(t, f.reqs)
		f.reqs = nil
		if !bytes.Equal(r.Usr, m.bytes[:usrLen]) || r.Session != ses || (r.Op == Read) != (m.fields["type"] == "read") || uint32(len(r.Data)) != data {
			t.Fatalf("%s: %+v", name, r)
		}
		if r.Op == Write && !bytes.Equal(r.Data, b[:data]) {
			t.Fatal("not what was written")
		}
		f.s.Reply(0, r, len(r.Data), err)
		ps := f.take()
		if data > 0 && r.Op != Write && err == nil {
			w := ps[0]
			addr, key, n := descOf(t, m)
			if w.op.Kind != transport.OpWrite || w.op.Addr != addr || w.op.Key != key || uint32(len(w.bytes)) != n || w.conn != conn {
				t.Fatalf("%s: data %+v", name, w)
			}
			ps = ps[1:]
		}
		if wantInv {
			_, key, _ := descOf(t, m)
			if ps[0].op.Kind != transport.OpSendInval || ps[0].op.Key != key || len(ps[0].bytes) != 0 || ps[0].conn != conn {
				t.Fatalf("%s: %+v", name, ps[0])
			}
			ps = ps[1:]
		}
		d := one(t, ps)
		rk, perr := rtrswire.ParseRKeyRsp(d.bytes)
		var errno syscall.Errno
		if err != nil {
			errno = err.(syscall.Errno)
		}
		if perr != nil || d.op.Kind != transport.OpSendImm || rk.BufID != 3 || d.conn != conn || rtrswire.Imm(d.op.Imm) != rtrswire.Done(3, uint16(errno), wantInv) {
			t.Fatalf("%s: answer %+v, %+v", name, d, rk)
		}
		if r, ok := f.regions[rk.Key]; !ok || r.addr != ds[3].Addr || rk.Key == old {
			t.Fatal("the new key is not for the chunk, where it was")
		}
		ds[3].Key = rk.Key
	}
	play("sess-info", 0, nil, true)
	play("open", 0, syscall.ENOENT, true)
	play("open-2", 0, nil, true)
	play("read-4096", 1, nil, true)
	play("write-4096", 1, nil, false)
	play("write-65536", 1, syscall.EIO, false)
	play("flush", 1, nil, false)
	play("read-126976", 1, syscall.EIO, true)
	play("close", 0, nil, false)
	if err := p.Written(0, 0, transport.Placed{Known: true, Imm: uint32(rtrswire.ImmHeartbeat)}); err != nil {
		t.Fatal(err)
	}
	if i := rtrswire.Imm(f.posts[0].op.Imm); i != rtrswire.ImmHeartbeatAck {
		t.Errorf("to a heartbeat: %v", i)
	}
	// A kernel does not know our messages and gets none.
	f.posts = nil
	f.tick(4e9)
	if ps := f.take(); len(ps) != 0 {
		t.Errorf("a kernel's client got %+v", ps)
	}
}

// descOf reads "ADDR KEY LEN".
func descOf(t *testing.T, m captured) (addr uint64, key, n uint32) {
	t.Helper()
	fs := strings.Fields(strings.Join(m.descs, " "))
	if len(fs) != 3 {
		t.Fatalf("not one descriptor: %q, %v", m.descs, m.fields)
	}
	var v [3]uint64
	for i := range v {
		var err error
		if v[i], err = strconv.ParseUint(fs[i], 0, 64); err != nil {
			t.Fatal(err)
		}
	}
	return v[0], uint32(v[1]), uint32(v[2])
}

// twoKernelPaths is a server with two paths of a kernel's client. The first has a write in
// chunk 0 at the store, and the second is told to run it again.
func twoKernelPaths(t *testing.T, before func(f *fakeServer, p *ServerPath)) (f *fakeServer, p, q *ServerPath) {
	t.Helper()
	f = newFakeServer(t, smallServer)
	p, ds := f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a", kernel: true})
	q, es := f.up(someone{session: 1, path: 2, attempt: 1, addr: 2, name: "a", kernel: true, late: true})
	if err := f.put(p, 1, ds, 0, Write, []byte("data")); err != nil {
		t.Fatal(err)
	}
	before(f, p)
	if err := f.put(q, 1, es, 0, Write, []byte("data")); err != nil {
		t.Fatal(err)
	}
	return f, p, q
}

// TestKernelClientFailsOver: a kernel asks for no fence. That it sends a request again, in
// the same chunk, is how it says that it has lost the path that had it.
func TestKernelClientFailsOver(t *testing.T) {
	lost := map[string]func(f *fakeServer, p *ServerPath){
		"believed connected": func(*fakeServer, *ServerPath) {},
		"disconnected":       func(f *fakeServer, p *ServerPath) { f.s.Disconnect(f.now, p) },
		"draining": func(f *fakeServer, p *ServerPath) {
			p.Lost(f.now, 0, syscall.ECONNRESET)
			p.Gone(f.now)
		},
	}
	for name, before := range lost {
		t.Run(name, func(t *testing.T) {
			f, p, q := twoKernelPaths(t, before)
			if q.State() != Connected || p.State() != Closing && p.State() != Draining || one(t, f.hung) != p {
				t.Fatalf("the old path is %v, the healthy one %v", p.State(), q.State())
			}
			old := one(t, f.reqs)
			if !old.Stale() {
				t.Fatal("the old request need not be dropped")
			}
			f.s.Reply(f.now, old, 0, nil)
			if len(f.reqs) != 2 || f.reqs[1].Path != q || string(f.reqs[1].Data) != "data" {
				t.Fatalf("%d requests came to the store", len(f.reqs))
			}
			p.Gone(f.now)
			if ps := f.take(); len(ps) != 0 {
				t.Fatalf("answered before it ran: %+v", ps)
			}
			f.s.Reply(f.now, f.reqs[1], 0, nil)
			if o := one(t, f.take()); o.path != q || o.conn != 1 {
				t.Fatalf("%+v", o)
			}
			if what := f.s.broken(); what != "" || f.s.Stats().Inflight != 0 || f.s.Stats().Violated != 0 {
				t.Fatal(what, f.s.Stats())
			}
		})
	}
}

// TestKernelClientFailsOverTwice: a request that waits for its chunk goes with its path, and
// the next path's waits in its place.
func TestKernelClientFailsOverTwice(t *testing.T) {
	f, _, q := twoKernelPaths(t, func(*fakeServer, *ServerPath) {})
	r, ds := f.up(someone{session: 1, path: 3, attempt: 1, addr: 3, name: "a", kernel: true, late: true})
	if err := f.put(r, 1, ds, 0, Write, []byte("data")); err != nil {
		t.Fatal(err)
	}
	if q.State() != Closing || r.State() != Connected || len(f.reqs) != 1 {
		t.Fatalf("the second path is %v, the third %v", q.State(), r.State())
	}
	q.Gone(f.now)
	if q.State() != Dead {
		t.Fatalf("the second path, which has nothing at the store, is %v", q.State())
	}
	f.s.Reply(f.now, f.reqs[0], 0, nil)
	if len(f.reqs) != 2 || f.reqs[1].Path != r {
		t.Fatalf("%d requests came to the store", len(f.reqs))
	}
	// With the last path the session ends, and what waits never runs.
	f, p, q := twoKernelPaths(t, func(*fakeServer, *ServerPath) {})
	q.Lost(f.now, 0, syscall.ECONNRESET)
	p.Gone(f.now)
	q.Gone(f.now)
	f.s.Reply(f.now, f.reqs[0], 0, nil)
	if len(f.reqs) != 1 || len(f.s.Paths()) != 0 || f.live != 0 {
		t.Fatalf("%d requests came to the store, %d bytes are left", len(f.reqs), f.live)
	}
}

// TestKernelClientReusesChunk: another request in a chunk that has one is no failover. The
// store is using the memory, which now has other content: the path is given up.
func TestKernelClientReusesChunk(t *testing.T) {
	f := newFakeServer(t, smallServer)
	p, ds := f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a", kernel: true})
	q, es := f.up(someone{session: 1, path: 2, attempt: 1, addr: 2, name: "a", kernel: true, late: true})
	if err := f.put(p, 1, ds, 0, Write, []byte("data")); err != nil {
		t.Fatal(err)
	}
	wantErr(t, f.put(q, 1, es, 0, Read, make([]byte, 4)), ErrProtocol)
	if q.State() != Closing {
		t.Fatalf("the path is %v", q.State())
	}
	// A client that fences has to do so first.
	f = newFakeServer(t, smallServer)
	p, ds = f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
	q, es = f.up(someone{session: 1, path: 2, attempt: 1, addr: 2, name: "a", late: true})
	if err := f.put(p, 1, ds, 0, Write, []byte("data")); err != nil {
		t.Fatal(err)
	}
	wantErr(t, f.put(q, 1, es, 0, Write, []byte("data")), ErrProtocol)
	if p.State() != Connected {
		t.Fatalf("the first path is %v", p.State())
	}
}

// TestKernelClientWaitsForGhosts: a kernel whose session has lost all paths was told that
// its requests failed, and asks for no fence: it comes back when all of them have ended.
func TestKernelClientWaitsForGhosts(t *testing.T) {
	for _, kernel := range []bool{true, false} {
		f := newFakeServer(t, smallServer)
		p, ds := f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a", kernel: kernel})
		q, _ := f.up(someone{session: 1, path: 2, attempt: 1, addr: 2, name: "a", kernel: kernel, late: true})
		if err := f.put(p, 1, ds, 0, Write, []byte("data")); err != nil {
			t.Fatal(err)
		}
		for _, x := range []*ServerPath{p, q} {
			x.Lost(f.now, 0, syscall.ECONNRESET)
			x.Gone(f.now)
		}
		n := f.join(someone{session: 1, path: 2, attempt: 2, addr: 2, name: "a", kernel: kernel})
		if want := map[bool]State{true: Fencing, false: Connected}[kernel]; n.State() != want {
			t.Fatalf("kernel %v: the path is %v while a write of its session is at the store", kernel, n.State())
		}
		f.s.Reply(f.now, one(t, f.reqs), 0, nil)
		if n.State() != Connected {
			t.Fatalf("kernel %v: the path is %v", kernel, n.State())
		}
	}
}
