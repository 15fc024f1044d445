package rtrs

import (
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/rdsd/rdsd/transport"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// TestKernelClientShapes: a kernel makes a connection for each processor and one, with keys that
// end and with one that lasts; an old one never says that it may create the session. The answer
// comes on the connection of the request.
func TestKernelClientShapes(t *testing.T) {
	for _, conns := range []uint16{1, 2, 3, 65, 129, 4096} {
		for _, lasts := range []bool{false, true} {
			t.Run(fmt.Sprint(conns, lasts), func(t *testing.T) {
				cfg := smallServer
				cfg.NoInvalidate = lasts
				f := newFakeServer(t, cfg)
				w := someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a", kernel: true}
				var p *ServerPath
				for i := range conns {
					if p = f.dial(w, i, conns).Path; p == nil {
						t.Fatalf("connection %d is refused with %v", i, f.rejected)
					}
				}
				rsp, err := rtrswire.ParseConnRsp(f.rsps[0])
				if want := map[bool]uint32{false: 2, true: 0}[lasts]; err != nil || rsp.Flags&^rtrswire.Fences != want {
					t.Fatalf("flags %#x, %v; want %d", rsp.Flags, err, want)
				}
				b, _ := rtrswire.AppendInfoReq(nil, w.name)
				if err := p.Received(f.now, 0, b, 0, false); err != nil || p.State() != Connected {
					t.Fatal(err, p.State())
				}
				sent, err := rtrswire.ParseInfoRsp(one(t, f.take()).bytes, f.s.chunks)
				if want := map[bool]int{false: 4, true: 1}[lasts]; err != nil || len(sent) != want {
					t.Fatalf("%d descriptors, %v; want %d", len(sent), err, want)
				}
				ds := f.s.chunks.Spread(nil, sent)
				for _, con := range []int{0, int(conns) - 1, int(conns) / 2} {
					if err := f.put(p, con, ds, 1, Read, nil); err != nil {
						t.Fatal(err)
					}
					f.s.Reply(f.now, f.reqs[len(f.reqs)-1], 0, nil)
					o := one(t, f.take())
					want := transport.OpSendImm
					if lasts {
						want = transport.OpWriteImm
					} else {
						ds[1].Key = p.keys[1].Key
					}
					if o.conn != con || o.op.Kind != want {
						t.Fatalf("%+v, want the answer on connection %d", o, con)
					}
				}
			})
		}
	}
	f := newFakeServer(t, smallServer)
	f.dial(someone{session: 1, path: 1, attempt: 1, addr: 1, kernel: true, late: true}, 0, 2)
	if want := []uint16{uint16(syscall.ENXIO)}; !slices.Equal(f.rejected, want) {
		t.Fatalf("a kernel that cannot create its session is rejected with %v, want %v", f.rejected, want)
	}
}

// TestKernelClientReturns: the place of a path that was lost, or removed, is free for another one
// between the same addresses, and an rdsd may have several: one for each transport.
func TestKernelClientReturns(t *testing.T) {
	for _, kernel := range []bool{true, false} {
		f := newFakeServer(t, smallServer)
		w := someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a", kernel: kernel}
		p, _ := f.up(w)
		w.path, w.addr = 2, 2
		f.up(w)
		w.addr, w.late, w.path = 1, true, 3
		if kernel {
			p.Lost(f.now, 0, syscall.ECONNRESET) // its links are not closed yet
		}
		if q := f.dial(w, 0, 2); q.Path == nil {
			t.Fatalf("kernel %v: rejected with %v", kernel, f.rejected)
		}
	}
}

// TestKernelServerWithoutInvalidation: a client of ours and what a kernel's server said that leaves
// its key valid: one descriptor for all chunks, and answers without a message.
func TestKernelServerWithoutInvalidation(t *testing.T) {
	k := kernelMessages(t)
	f := newFakeClient(t, ClientConfig{Name: "s1", RemoteInval: true})
	p := f.add(2)
	for i := range 2 {
		p.Dialed(0, i, k["connrsp invalidate-off"].bytes)
	}
	f.take()
	m := k["inforsp 1-descriptors"]
	if err := p.Received(0, 0, m.bytes, 0, false); err != nil || p.State() != Connected {
		t.Fatal(err, p.State())
	}
	addr, key, size := descOf(t, m)
	if size != f.c.chunks.Depth*f.c.chunks.Size() {
		t.Fatalf("%d bytes for %d chunks", size, f.c.chunks.Depth)
	}
	for range 3 {
		r := f.submit(Read, make([]byte, 4096))
		o := one(t, f.take())
		if o.op.Key != key || o.op.Addr != addr+uint64(r.permit)*uint64(f.c.chunks.Size())+4096 {
			t.Fatalf("%+v", o)
		}
		delete(f.keys, r.key)
		if err := p.Invalidated(0, o.conn, r.key, 4096); err != nil {
			t.Fatal(err)
		}
		if err := p.Written(0, o.conn, transport.Placed{Known: true, Imm: uint32(rtrswire.Done(r.permit, 0, true))}); err != nil || r.Err != nil {
			t.Fatal(err, r.Err)
		}
	}
	if len(f.done) != 3 {
		t.Fatalf("%d done", len(f.done))
	}
}

// TestKernelFailsOverWhatEndsWithItsPath: a request that waits in the environment, as an OPEN does, is
// replied to when its path is given up for the one that the kernel sends again: that begins then, at
// once or when its key has ended, and once.
func TestKernelFailsOverWhatEndsWithItsPath(t *testing.T) {
	for _, how := range []transport.Revocation{transport.Idle, transport.Pending} {
		f := newFakeServer(t, smallServer)
		p, ds := f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a", kernel: true})
		q, es := f.up(someone{session: 1, path: 2, attempt: 1, addr: 2, name: "a", kernel: true, late: true})
		f.put(p, 1, ds, 0, Read, make([]byte, 8))
		f.onStale = func() { f.s.Reply(f.now, f.reqs[0], 0, syscall.ENOTCONN) }
		f.how = how
		if err := f.put(q, 1, es, 0, Read, make([]byte, 8)); err != nil || p.State() != Closing {
			t.Fatalf("%v: %v, the old path is %v", how, err, p.State())
		}
		if how == transport.Pending {
			if len(f.reqs) != 1 {
				t.Fatal("begun while the client can change it")
			}
			q.Revoked(f.now, 0, es[0].Key, 0)
		}
		if len(f.reqs) != 2 || f.reqs[1].Path != q || f.s.broken() != "" {
			t.Fatalf("%v: %d requests have begun; %s", how, len(f.reqs), f.s.broken())
		}
		f.s.Reply(f.now, f.reqs[1], 8, nil)
		p.Gone(f.now)
		if s := f.s.Stats(); f.s.broken() != "" || s.Inflight != 0 || p.State() != Dead || len(f.reqs) != 2 {
			t.Fatalf("%v: %+v, %s, the old path is %v", how, s, f.s.broken(), p.State())
		}
	}
}
