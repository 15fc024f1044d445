package rnbd

import (
	"fmt"
	"math/rand"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rtrs"
	"github.com/rdsd/rdsd/transport"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// overRTRS is a server with the rtrs.Server below it, and a client that writes bytes
// into its chunks. What is not here is not called.
type overRTRS struct {
	rtrs.ServerEnv
	t       *testing.T
	rt      *rtrs.Server
	srv     *Server
	chunks  rtrswire.Chunks
	regions map[uint32][]byte
	rsps    []byte // the last CON_RSP or INFO_RSP
	sent    int    // answers to requests
	errno   uint16 // of the last of them
	data    []byte // of the last answer to a READ
	waits   bool   // requests do, for memory
	waiting []*rtrs.ServerReq
}

func (o *overRTRS) Accept(c *rtrs.ServerCon, _ transport.LinkAttr, rsp []byte) {
	o.rsps = append([]byte(nil), rsp...)
}
func (o *overRTRS) Reject(c *rtrs.ServerCon, rsp []byte) { o.t.Fatalf("rejected: %x", rsp) }
func (o *overRTRS) Hang(p *rtrs.ServerPath)              {}
func (o *overRTRS) Post(p *rtrs.ServerPath, conn int, op *transport.Op) {
	if op.Kind == transport.OpSend {
		o.rsps = append([]byte(nil), op.Data...)
		return
	}
	if op.Kind == transport.OpWrite { // the status follows
		o.data = append([]byte(nil), op.Data...)
		return
	}
	if i := rtrswire.Imm(op.Imm); i != rtrswire.ImmHeartbeat && i != rtrswire.ImmHeartbeatAck {
		o.sent++
		_, o.errno, _ = i.Done()
	}
}

func (o *overRTRS) Adopt(*rtrs.ServerPath, []byte) (bool, error) { return false, nil }

func (o *overRTRS) Grant(p *rtrs.ServerPath, conn int, b []byte, at uint64) (uint32, uint64) {
	key := uint32(len(o.regions) + 1)
	o.regions[key] = b
	return key, 0
}

func (o *overRTRS) Revoke(*rtrs.ServerPath, uint32) transport.Revocation { return transport.Idle }
func (o *overRTRS) Alloc(n int) []byte                                   { return make([]byte, n) }
func (o *overRTRS) Free(b []byte)                                        {}
func (o *overRTRS) Trim(b []byte)                                        {}
func (o *overRTRS) Up(s *rtrs.ServerSession)                             { o.srv.Up(s) }
func (o *overRTRS) Down(s *rtrs.ServerSession)                           { o.srv.Down(0, s) }
func (o *overRTRS) Stale(s *rtrs.ServerSession)                          { o.srv.Stale(0, s) }
func (o *overRTRS) Event(e rtrs.Event)                                   {}

func (o *overRTRS) Request(r *rtrs.ServerReq) {
	if o.waits {
		o.waiting = append(o.waiting, r)
	} else {
		o.srv.Request(0, r)
	}
}

// newOver is one with the export d, whose device is d. Openings wait in w.
func newOver(t *testing.T, d blk.Device) (*overRTRS, *world) {
	t.Helper()
	o := &overRTRS{t: t, regions: map[uint32][]byte{}}
	rt, err := rtrs.NewServer(rtrs.ServerConfig{QueueDepth: 4, MaxIO: 64 << 10, MaxPaths: 32}, o, 7, 0)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, ServerConfig{})
	o.rt, o.srv = rt, NewServer(ServerConfig{}, w, rt, rand.New(rand.NewSource(1)))
	w.srv = o.srv
	if err := o.srv.Export(&Export{Name: "d", Device: d}); err != nil {
		t.Fatal(err)
	}
	return o, w
}

// hello greets on a path.
func (o *overRTRS) hello(p *rtrs.ServerPath, ds []rtrswire.Desc) {
	o.t.Helper()
	o.put(p, ds, 0, rtrswire.Read, rnbdwire.SessInfoLen, rnbdwire.AppendSessInfo(nil, rnbdwire.SessInfo, 2))
}

// open opens d in chunk 1 and returns its number.
func (o *overRTRS) open(p *rtrs.ServerPath, ds []rtrswire.Desc) uint32 {
	o.t.Helper()
	o.put(p, ds, 1, rtrswire.Read, rnbdwire.OpenRspLen, must(open1("d", rw)))
	rsp, err := rnbdwire.ParseOpenRsp(o.data)
	if open := o.srv.Open(); err != nil || len(open) == 0 {
		o.t.Fatalf("%d are open, %v", len(open), err)
	}
	return rsp.DeviceID
}

// lose loses a path, with its links, and tells whether anything of it is left.
func (o *overRTRS) lose(p *rtrs.ServerPath) (left bool) {
	o.rt.Disconnect(0, p)
	p.Gone(0)
	return slices.Contains(o.rt.Paths(), p)
}

// path connects an attempt of a path of the one session and returns its chunks.
func (o *overRTRS) path(id byte, attempt uint16) (*rtrs.ServerPath, []rtrswire.Desc) {
	o.t.Helper()
	var p *rtrs.ServerPath
	for conn := range uint16(2) {
		r := rtrswire.ConnReq{Conn: conn, Conns: 2, Attempt: attempt, FirstConn: id == 1}
		r.Session[0], r.Path[0] = 1, id
		c := o.rt.Connect(0, nil, r.Append(nil), netip.MustParseAddrPort("10.0.0.1:1"), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 1, id}), 9))
		p = c.Path
	}
	rsp, err := rtrswire.ParseConnRsp(o.rsps)
	if err == nil {
		o.chunks, err = rtrswire.NewChunks(uint32(rsp.QueueDepth), rsp.MaxIOSize, rsp.MaxHdrSize)
	}
	var b []byte
	if err == nil {
		if b, err = rtrswire.AppendInfoReq(nil, "client"); err == nil {
			err = p.Received(0, 0, b, 0, false)
		}
	}
	var ds []rtrswire.Desc
	if err == nil {
		ds, err = rtrswire.ParseInfoRsp(o.rsps, o.chunks)
	}
	if err != nil {
		o.t.Fatal(err)
	}
	return p, o.chunks.Spread(nil, ds)
}

// put writes a request with n bytes of data into chunk id, as a link does.
func (o *overRTRS) put(p *rtrs.ServerPath, ds []rtrswire.Desc, id uint32, kind rtrswire.Type, n int, usr []byte) {
	o.t.Helper()
	m := rtrswire.Req{Type: kind, UsrLen: uint16(len(usr))}
	at := 0
	b := m.Append(append(make([]byte, n), usr...))
	if kind == rtrswire.Read {
		m.SGCnt, m.Desc = 1, rtrswire.Desc{Addr: 1, Key: 1, Len: uint32(n)}
		b, at = m.Append(append([]byte(nil), usr...)), n
	}
	addr := ds[id].Addr + uint64(at)
	copy(o.regions[ds[id].Key][addr:], b)
	if err := p.Written(0, 1, transport.Placed{Known: true, Key: ds[id].Key, Addr: addr, N: len(b), Imm: uint32(o.chunks.Req(id, uint32(n+len(usr))))}); err != nil {
		o.t.Fatal(err)
	}
}

// TestNothingForAPathThatIsGone: what a request still needs of its store when its path
// goes is left out, for nobody hears of it, and the request ends all the same; those of
// the session's other path go on.
func TestNothingForAPathThatIsGone(t *testing.T) {
	info := cached
	info.FUA = false // so that a durable write is two requests
	d := newRecorder(info)
	o, _ := newOver(t, d)
	queue := nowhere{}
	// next takes what there is to be done to the store.
	next := func(want string) (batch []*blk.Request) {
		t.Helper()
		d.log = nil
		if _, batch = o.srv.Next(time.Second, make([]*blk.Request, 0, 4)); batch != nil {
			for _, r := range batch {
				r.Queue = queue
			}
			d.Submit(batch)
		}
		if got := strings.Join(d.log, ", "); got != want {
			t.Fatalf("the store is asked %q, want %q", got, want)
		}
		return batch
	}
	one, chunks := o.path(1, 1)
	other, others := o.path(2, 1)
	o.hello(one, chunks)
	id := o.open(one, chunks)
	write := rawIO(id, rnbdwire.Write, rnbdwire.FUA|rnbdwire.Preflush, 0, 512)

	// Both paths write; the first goes while its store is being flushed.
	o.put(one, chunks, 2, rtrswire.Write, 512, write)
	first := next("flush")
	o.put(other, others, 3, rtrswire.Write, 512, write)
	second := next("flush")
	o.lose(one)
	sent := o.sent
	o.srv.Complete(0, first)
	next("")
	o.srv.Complete(0, second)
	o.srv.Complete(0, next("write 0+512"))
	o.srv.Complete(0, next("flush"))
	next("")
	if o.sent != sent+1 {
		t.Errorf("%d answers, want one: the other path's", o.sent-sent)
	}
	// Nothing is in flight any more: the volume closes.
	o.put(other, others, 0, rtrswire.Write, 0, rnbdwire.AppendClose(nil, id))
	if n := len(o.srv.Open()); n != 0 || o.sent != sent+2 {
		t.Errorf("%d are open after they were closed, %d answers", n, o.sent-sent)
	}
}

// nowhere is where a store's completions go that the test hands on itself.
type nowhere struct{}

func (nowhere) Complete([]*blk.Request) {}

// TestOpeningKeepsNoPath: a file system that does not come to an end with opening a volume
// keeps neither the session nor a path of it from coming back: an OPEN does nothing that a
// later one must wait for.
func TestOpeningKeepsNoPath(t *testing.T) {
	for _, another := range []bool{false, true} {
		o, w := newOver(t, newRecorder(cached))
		dir := t.TempDir()
		writeFile(t, dir+"/slow", 1<<20)
		w.root(&Root{Path: dir})
		slow := must(open1("slow", rw))
		one, chunks := o.path(1, 1)
		o.hello(one, chunks)
		if another {
			o.path(2, 1)
		}
		o.put(one, chunks, 2, rtrswire.Read, rnbdwire.OpenRspLen, slow)
		sent := o.sent
		if o.lose(one) {
			t.Fatalf("another path %v: the path waits for the file system", another)
		}
		// path fails where its attempt is not let in.
		for attempt := range uint16(3) {
			one, chunks = o.path(1, attempt+2)
			o.hello(one, chunks)
			o.put(one, chunks, 2, rtrswire.Read, rnbdwire.OpenRspLen, slow)
			sent++
			if attempt < 2 && o.lose(one) {
				t.Fatalf("another path %v: attempt %d waits for the file system", another, attempt+2)
			}
		}
		if len(w.openings) != 1 {
			t.Errorf("another path %v: %d openings wait there, want one for all attempts", another, len(w.openings))
		}
		for _, x := range w.openings {
			dev, _, err := x.Do()
			o.srv.Opened(0, x, dev, err)
		}
		if list := o.srv.Open(); len(list) != 1 || list[0].Name != "slow" || o.sent != sent+1 || len(w.closed) != 0 {
			t.Errorf("another path %v: %d open, %d answers more, %d closed; want 1, 1, 0", another, len(list), o.sent-sent, len(w.closed))
		}
	}
}

// TestLateOpenKeepsNoPath: nor does an OPEN that waits for memory when its path goes, and comes to the
// server after it was told so.
func TestLateOpenKeepsNoPath(t *testing.T) {
	o, w := newOver(t, newRecorder(cached))
	w.root(&Root{Path: t.TempDir()})
	one, chunks := o.path(1, 1)
	o.path(2, 1)
	o.hello(one, chunks)
	o.waits = true
	o.put(one, chunks, 2, rtrswire.Read, rnbdwire.OpenRspLen, must(open1("slow", rw)))
	o.lose(one)
	o.srv.Request(0, o.waiting[0])
	if slices.Contains(o.rt.Paths(), one) || len(w.openings) != 0 {
		t.Errorf("the path waits for the file system, with %d openings", len(w.openings))
	}
}

// TestOpeningFailsOver: a kernel's OPEN that waits for a file system comes again on a path from
// another address. It waits there, and is answered as the rules of the place say where the volume
// is found; an address that no place takes it from is refused at once.
func TestOpeningFailsOver(t *testing.T) {
	first, both, none := []netip.Prefix{netip.MustParsePrefix("10.0.1.1/32")}, []netip.Prefix(nil), rdserr.ErrPerm.Errno
	for _, c := range []struct {
		empty, found []netip.Prefix // the addresses that may open below two roots
		waits        bool
		want         syscall.Errno
	}{{both, both, true, 0}, {first, both, true, 0}, {both, first, true, none}, {first, first, false, none}} {
		o, w := newOver(t, newRecorder(cached))
		dir := t.TempDir()
		writeFile(t, dir+"/slow", 1<<20)
		w.root(&Root{Path: t.TempDir(), Rules: Rules{Allow: c.empty}})
		w.root(&Root{Path: dir, Rules: Rules{Allow: c.found}})
		one, chunks := o.path(1, 1)
		other, others := o.path(2, 1)
		o.hello(one, chunks)
		sent, slow := o.sent, must(open1("slow", rw))
		o.put(one, chunks, 2, rtrswire.Read, rnbdwire.OpenRspLen, slow)
		o.put(other, others, 2, rtrswire.Read, rnbdwire.OpenRspLen, slow)
		if waits := o.sent == sent; waits != c.waits || len(w.openings) != 1 {
			t.Errorf("%v: it waits %v with %d openings, want %v", c, waits, len(w.openings), c.waits)
		}
		w.run()
		if o.sent != sent+1 || syscall.Errno(o.errno) != c.want || len(o.srv.Open()) != 1 {
			t.Errorf("%v: %d answers, errno %d, %d open; want 1, %d, 1", c, o.sent-sent, o.errno, len(o.srv.Open()), c.want)
		}
	}
}

// TestClosingKeepsNoPath: a CLOSE that waits for the store does not keep its path, when that
// is lost, from ending, whether or not the session goes with it; the volume closes all the same.
func TestClosingKeepsNoPath(t *testing.T) {
	for _, all := range []bool{false, true} {
		d := newRecorder(cached)
		o, _ := newOver(t, d)
		one, chunks := o.path(1, 1)
		other, others := o.path(2, 1)
		o.hello(one, chunks)
		id := o.open(one, chunks)
		o.put(one, chunks, 2, rtrswire.Write, 512, rawIO(id, rnbdwire.Write, 0, 0, 512))
		_, batch := o.srv.Next(0, make([]*blk.Request, 0, 4))
		o.put(other, others, 3, rtrswire.Write, 0, rnbdwire.AppendClose(nil, id))
		if all && !o.lose(one) {
			t.Fatal("the path does not wait for its write at the store")
		}
		if o.lose(other) {
			t.Errorf("both lost %v: the path of the CLOSE waits for the store", all)
		}
		sent := o.sent
		for _, r := range batch {
			r.Queue = nowhere{}
		}
		d.Submit(batch)
		o.srv.Complete(0, batch)
		want := 1
		if all {
			want = 0
		}
		if n := len(o.srv.Devices()); n != 0 || o.sent != sent+want || all && len(o.rt.Paths()) != 0 {
			t.Errorf("both lost %v: %d are open, %d answers, %d paths; want 0, %d", all, n, o.sent-sent, len(o.rt.Paths()), want)
		}
	}
}

// TestOpeningsAreBounded: of openings whose session is gone so many are under way; what a
// session asks for beyond that keeps its path, so that there can be no more.
func TestOpeningsAreBounded(t *testing.T) {
	o, w := newOver(t, newRecorder(cached))
	dir := t.TempDir()
	w.root(&Root{Path: dir})
	for i := range uint16(maxOrphans + 1) {
		one, chunks := o.path(1, i+1)
		o.put(one, chunks, 2, rtrswire.Read, rnbdwire.OpenRspLen, must(open1(fmt.Sprint("f", i), rw)))
		if left, want := o.lose(one), i == maxOrphans; left != want {
			t.Fatalf("after %d openings: the path waits %v, want %v", i+1, left, want)
		}
	}
	for _, x := range w.openings {
		dev, _, err := x.Do()
		o.srv.Opened(0, x, dev, err)
	}
	if n := len(o.rt.Paths()); n != 0 || len(o.srv.orphans) != 0 {
		t.Errorf("when they have ended: %d paths, %d openings", n, len(o.srv.orphans))
	}
}
