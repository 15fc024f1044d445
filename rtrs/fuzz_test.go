package rtrs

import (
	"github.com/rdsd/rdsd/transport"
	"math/rand"
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// A hostile peer: a program of bytes says what it sends, and when links break.

type program struct{ b []byte }

func (p *program) byte() byte {
	if len(p.b) == 0 {
		return 0
	}
	x := p.b[0]
	p.b = p.b[1:]
	return x
}

func (p *program) u16() uint16 { return uint16(p.byte()) | uint16(p.byte())<<8 }
func (p *program) u32() uint32 { return uint32(p.u16()) | uint32(p.u16())<<16 }

// bytes are the message m as it is, with some of its bytes changed, or others.
func (p *program) bytes(m []byte) []byte {
	n := int(p.byte())
	switch {
	case n < 192:
		return m
	case n < 224:
		for ; n > 192 && len(m) > 0; n -= 8 {
			m[int(p.u16())%len(m)] ^= p.byte()
		}
		return m
	}
	n = min(8*(n-224), len(p.b))
	b := p.b[:n:n]
	p.b = p.b[n:]
	return append([]byte(nil), b...)
}

// serverWorld runs a program against a server; a well-behaved client of another
// session is there all the while.
func serverWorld(t testing.TB, b []byte) {
	p := &program{b}
	cfg := ServerConfig{QueueDepth: 4, MaxIO: 512, MaxHdr: 512, NoInvalidate: p.byte()&1 != 0, MaxPaths: 3, MaxSessions: 4, TrimAfter: time.Second}
	f := newFakeServer(t, cfg)
	f.s.keep = 0
	good, ds := f.up(someone{session: 99, path: 99, attempt: 1, addr: 99, name: "good"})
	var running []*ServerReq
	f.request = func(r *ServerReq) {
		mem := r.Session.mem
		if len(r.Data) > 0 {
			if at := offsetIn(mem, r.Data); at < 0 || at+cap(r.Data) > len(mem) || len(r.Data) > 512 {
				t.Fatalf("a request with data outside of its session's chunks")
			}
		}
		if len(r.Usr) > MaxUsr || r.Session == good.Session() && r.Path != good {
			t.Fatalf("%d bytes of user header; session %s", len(r.Usr), r.Session.Name)
		}
		running = append(running, r)
	}
	reply := func(i int) {
		r := running[i]
		running = append(running[:i:i], running[i+1:]...)
		if r.Path == good {
			ds[r.chunk].Key = 0
		}
		f.s.Reply(f.now, r, int(p.byte()), nil)
		for _, o := range f.take() {
			if k, err := rtrswire.ParseRKeyRsp(o.bytes); err == nil && o.path == good {
				ds[k.BufID].Key = k.Key
			}
		}
	}
	paths := func() (ps []*ServerPath) {
		for _, q := range f.s.Paths() {
			if q != good {
				ps = append(ps, q)
			}
		}
		return ps
	}
	for steps := 0; len(p.b) > 0 && steps < 500; steps++ {
		op := p.byte()
		ps := paths()
		var q *ServerPath
		if len(ps) > 0 {
			q = ps[int(p.byte())%len(ps)]
		}
		switch op % 16 {
		case 12, 13: // a whole handshake
			w := someone{session: p.byte() % 3, path: p.byte() % 4, attempt: p.u16() % 8, addr: p.byte() % 2, name: string('a' + rune(p.byte()%3))}
			if c := f.dial(w, 0, 2); c.Path != nil {
				f.dial(w, 1, 2)
				m, _ := rtrswire.AppendInfoReq(nil, w.name)
				c.Path.Received(f.now, 0, m, 0, false)
			}
		case 14, 15: // a good request, mostly
			if id := uint32(p.byte()) % 4; q != nil && len(q.keys) > 0 {
				if _, ok := f.regions[q.keys[id].Key]; ok {
					f.put(q, int(op>>7), q.keys, id, Op(op>>6&1), make([]byte, int(p.u16())%513))
				}
			}
		case 0, 1:
			w := someone{session: p.byte() % 3, path: p.byte() % 4, attempt: p.u16() % 8, late: op&64 != 0, kernel: op&128 != 0}
			conns := uint16(1 + p.byte()%3)
			f.s.Connect(f.now, nil, p.bytes(w.req(uint16(p.byte()%3), conns)), netip.AddrPort{}, netip.AddrPortFrom(netip.AddrFrom4([4]byte{1, 2, 3, p.byte() % 2}), 1))
		case 2:
			if q != nil {
				m, _ := rtrswire.AppendInfoReq(nil, string('a'+rune(p.byte()%3)))
				q.Received(f.now, int(op>>4)%3, p.bytes(m), p.u32(), op&128 != 0)
			}
		case 3:
			if q != nil {
				m := rtrswire.Fence{Type: rtrswire.FenceType, Attempt: p.u16() % 8}
				m.Path[0] = p.byte() % 4
				q.Received(f.now, 0, p.bytes(m.Append(nil)), 0, false)
			}
		case 4:
			if q != nil {
				q.Received(f.now, 0, p.bytes(rtrswire.Notice{Type: rtrswire.RestedType}.Append(nil)), 0, false)
			}
		case 5, 6, 7:
			if q == nil {
				break
			}
			id, off, n := uint32(p.byte())%5, uint32(p.u16())%1100, int(p.u16())%1100
			key, addr := p.u32(), uint64(p.u32())
			if int(id) < len(q.keys) && op&64 == 0 { // with a right key
				key, addr = q.keys[id].Key, q.keys[id].Addr+addr%1100
				if r, ok := f.regions[key]; ok && addr-r.addr < uint64(len(r.b)) {
					copy(r.b[addr-r.addr:], p.bytes(nil))
				}
			}
			q.Written(f.now, int(op>>4)%3, transport.Placed{Known: true, Key: key, Addr: addr, N: n, Imm: id<<26 | off | uint32(p.byte()%10)<<28})
		case 8:
			if q != nil {
				q.Invalidated(f.now, 0, p.u32(), int(p.u32()))
			}
		case 9:
			if q != nil && op&64 != 0 {
				q.Lost(f.now, 0, rdserr.ErrReset)
			} else if q != nil && q.hung && q.State() == Closing {
				q.Gone(f.now)
			}
		case 10:
			f.tick(time.Duration(p.byte()) * 10 * ms)
			good.Written(f.now, 0, transport.Placed{Known: true, Imm: uint32(rtrswire.ImmHeartbeatAck)})
		case 11:
			if len(running) > 0 {
				reply(int(p.byte()) % len(running))
			}
		}
		if what := f.s.broken(); what != "" {
			t.Fatal(what)
		}
		if good.State() != Connected && len(good.Info().Err.Error()) > 0 && good.Info().Err != error(ErrHeartbeat) {
			t.Fatalf("another session's path is %v: %v", good.State(), good.Info().Err)
		}
	}
	// Everything ends.
	if good.State() == Connected {
		at := len(running)
		if err := f.put(good, 1, ds, 1, Write, []byte("good")); err != nil || len(running) != at+1 || string(running[at].Data) != "good" {
			t.Fatalf("the good client's request: %v", err)
		}
	}
	f.s.Close(f.now)
	f.tick(time.Second)
	for _, q := range f.s.Paths() {
		q.Gone(f.now)
	}
	for len(running) > 0 {
		reply(0)
	}
	if f.closed != 1 || f.live != 0 || len(f.regions) != 0 {
		t.Fatalf("%d closed, %d bytes and %d keys left, %+v", f.closed, f.live, len(f.regions), f.s.Stats())
	}
}

// offsetIn is where b begins in mem, -1: elsewhere.
func offsetIn(mem, b []byte) int {
	for i := range mem {
		if &mem[i] == &b[0] {
			return i
		}
	}
	return -1
}

// clientWorld runs a program against a client with requests.
func clientWorld(t testing.TB, b []byte) {
	p := &program{b}
	f := newFakeClient(t, ClientConfig{OnLoss: OnLoss(p.byte() % 2), IOTimeout: time.Second, LossTimeout: time.Second, Policy: Policy(p.byte() % byte(len(policies)))})
	out := map[*Req]bool{}
	f.onDone = func(r *Req) {
		if !out[r] {
			t.Fatal("done twice")
		}
		delete(out, r)
	}
	small := chunksOf(4, 512, 512)
	f.add(1)
	f.add(2)
	for steps := 0; len(p.b) > 0 && steps < 500; steps++ {
		op := p.byte()
		ps := f.c.Paths()
		if len(ps) == 0 && f.c.Err() != nil {
			break
		}
		if len(ps) == 0 {
			f.add(byte(steps))
			continue
		}
		q := ps[int(p.byte())%len(ps)]
		flags := uint32(op>>4) & ours
		if op&128 != 0 {
			flags = ours
		}
		switch op % 16 {
		case 13: // a whole handshake
			for q.State() == Connecting && len(q.cons) < 2 {
				q.Dialed(f.now, len(q.cons), rsp(small, ours))
			}
			q.Received(f.now, 0, info(small, uint32(1+op>>7)), 0, false)
		case 14, 15: // a good answer
			for id, r := range f.c.slots {
				if r != nil && r.path == q {
					q.Received(f.now, int(r.con), rtrswire.RKeyRsp{BufID: uint16(id), Key: 5}.Append(nil), uint32(rtrswire.Done(uint32(id), 0, false)), true)
				}
			}
		case 0, 1:
			q.Dialed(f.now, len(q.cons), p.bytes(rsp(small, flags)))
		case 2:
			r := rtrswire.Reject(1 + p.u16()%200)
			q.Refused(f.now, len(q.cons), p.bytes(r.Append(nil)), nil)
		case 3, 4:
			q.Received(f.now, 0, p.bytes(info(small, uint32(op>>4))), 0, false)
		case 5:
			q.Received(f.now, 0, p.bytes(rtrswire.Notice{Type: rtrswire.Type(0x8000 + uint16(p.byte())%8), Errno: p.u16()}.Append(nil)), 0, false)
		case 6:
			m := rtrswire.Fence{Type: rtrswire.FencedType, Attempt: 1}
			for _, e := range f.c.epochs {
				m.Attempt, m.Path = e.attempt, e.path
			}
			q.Received(f.now, 0, p.bytes(m.Append(nil)), 0, false)
		case 7, 8:
			id := uint32(p.byte()) % 5
			i := rtrswire.Done(id, p.u16()%20, op&64 != 0)
			if op&32 != 0 {
				i = rtrswire.Imm(p.u32())
			}
			q.Received(f.now, int(op>>4)%2, p.bytes(rtrswire.RKeyRsp{BufID: uint16(id), Key: 5}.Append(nil)), uint32(i), true)
		case 9:
			q.Written(f.now, int(op>>4)%3, transport.Placed{Known: true, Imm: p.u32()})
			q.Invalidated(f.now, int(op>>4)%3, p.u32()%20, int(p.u32()%8192))
		case 10:
			r := &Req{Op: Op(op >> 7), Admin: op&64 != 0, Data: make([]byte, int(p.u16())%513), Usr: make([]byte, p.byte())}
			if f.c.Submit(f.now, r) == nil {
				out[r] = true
			}
		case 11:
			switch p.byte() % 6 {
			case 0:
				q.Lost(f.now, 0, rdserr.ErrReset)
			case 1:
				f.c.Disconnect(f.now, q)
			case 2:
				f.c.Reconnect(f.now, q)
			case 3:
				f.c.Remove(f.now, q)
			default:
				q.Gone(f.now)
			}
		case 12:
			f.tick(time.Duration(p.byte()) * 10 * ms)
		}
		if what := f.c.broken(); what != "" {
			t.Fatal(what)
		}
	}
	f.c.Close(f.now)
	for len(f.c.Paths()) > 0 {
		f.c.Paths()[0].Gone(f.now)
	}
	if len(out) != 0 || f.closed != 1 || len(f.keys) > 20 {
		t.Fatalf("%d requests not done, %d closed, %d keys", len(out), f.closed, len(f.keys))
	}
}

// A good conversation, as a program: the fuzzers begin with it.
var (
	serverSeed = []byte{0, 0, 0, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 1, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 5, 0, 1, 8, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	clientSeed = []byte{0, 0, 128, 0, 0, 128, 0, 0, 131, 0, 0, 10, 0, 16, 0, 8, 7, 0, 0, 0, 0, 0, 12, 9, 11, 0, 0, 11, 0, 5, 12, 0, 50}
)

func FuzzServer(f *testing.F) {
	f.Add(serverSeed)
	f.Fuzz(func(t *testing.T, b []byte) { serverWorld(t, b) })
}

func FuzzClient(f *testing.F) {
	f.Add(clientSeed)
	f.Fuzz(func(t *testing.T, b []byte) { clientWorld(t, b) })
}

// TestHostile runs both with random programs.
func TestHostile(t *testing.T) {
	n := 4000
	if raceDetector || testing.Short() {
		n = 500
	}
	rnd := rand.New(rand.NewSource(1))
	for range n {
		b := make([]byte, 20+rnd.Intn(800))
		for i := range b {
			if b[i] = byte(rnd.Intn(256)); rnd.Intn(3) == 0 {
				b[i] &= 3 // small numbers are what leads further
			}
		}
		serverWorld(t, b)
		clientWorld(t, b)
	}
}
