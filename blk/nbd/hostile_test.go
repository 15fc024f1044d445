package nbd

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math/rand"
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
)

// guarded is a device in the middle of a larger memory volume, so that whatever
// is read or written outside of it shows.
type guarded struct {
	*blk.Mem
	t     testing.TB
	size  uint64
	inner *blk.Info
}

const guardSize = 64 << 10

var guardBytes = bytes.Repeat([]byte{0xd5}, guardSize)

func newGuarded(t testing.TB, size uint64) *guarded {
	g := &guarded{Mem: memory(t, size+2*guardSize), t: t, size: size}
	i := *g.Mem.Info()
	i.Size = size
	g.inner = &i
	for _, off := range []uint64{0, guardSize + size} {
		if err := blk.WriteAt(g.Mem, guardBytes, off, 0); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

func (g *guarded) Info() *blk.Info { return g.inner }

// Submit trusts its caller on purpose: it checks nothing but moves the request.
func (g *guarded) Submit(batch []*blk.Request) {
	for _, r := range batch {
		off := r.Off
		if r.Op != blk.OpFlush {
			r.Off += guardSize
		}
		q := *r
		r.Err = blk.Do(g.Mem, &q)
		r.Off = off
	}
	blk.Complete(batch)
}

func (g *guarded) Map(off, n uint64, out []blk.Extent) ([]blk.Extent, error) {
	return g.Mem.Map(guardSize+off, n, out)
}

func (g *guarded) check() {
	g.t.Helper()
	b := make([]byte, guardSize)
	for _, off := range []uint64{0, guardSize + g.size} {
		if err := blk.ReadAt(g.Mem, b, off); err != nil || !bytes.Equal(b, guardBytes) {
			g.t.Fatalf("something was written outside of the volume (%v)", err)
		}
	}
}

// TestHostileRequests sends requests of random fields, extreme ones above all.
// No guard byte is ever read or written, and the server lives.
func TestHostileRequests(t *testing.T) {
	const size = 1 << 20
	g := newGuarded(t, size)
	if err := blk.WriteAt(g.Mem, bytes.Repeat([]byte{0x77}, size), guardSize, 0); err != nil {
		t.Fatal(err)
	}
	_, socket := serve(t, Options{}, Export{Device: g})
	rng := rand.New(rand.NewSource(2))
	edges := []uint64{0, 1, 511, 512, 4096, size - 512, size - 1, size, size + 1, size + 512, 1 << 31, 1 << 32, 1<<63 - 512, 1 << 63, ^uint64(0), ^uint64(0) - 511, ^uint64(0) - size + 1}
	for round := range 20 {
		c := enter(t, socket, "", round%2 == 0)
		for range 100 {
			cmd := uint16(rng.Intn(9))
			if cmd == cmdDisc {
				continue
			}
			flags := uint16(0)
			if rng.Intn(3) == 0 {
				flags = uint16(rng.Intn(1 << 16))
			}
			off, n := edges[rng.Intn(len(edges))], uint32(edges[rng.Intn(len(edges))])
			var payload []byte
			if cmd == cmdWrite {
				n = min(n, 2<<20)
				payload = bytes.Repeat([]byte{0x77}, int(n))
			}
			if cmd == cmdTrim || cmd == cmdWriteZeroes {
				n = max(n, 1) | 1 // never one that changes anything
			}
			r := c.do(cmd, flags, off, n, payload)
			if cmd == cmdRead && r.value == 0 && len(bytes.Trim(r.data, "\x77")) != 0 {
				t.Fatalf("a read at %d, length %d brought foreign bytes", off, n)
			}
		}
	}
	g.check()
}

// TestGarbage: what is no request ends the connection, and only that one.
func TestGarbage(t *testing.T) {
	m := memory(t, 1<<20)
	s, socket := serve(t, Options{}, Export{Device: m})
	witness := enter(t, socket, "", true)
	rng := rand.New(rand.NewSource(3))
	for range 20 {
		c := enter(t, socket, "", false)
		b := make([]byte, 4096)
		rng.Read(b)
		c.send(b)
		c.wantEnd("after garbage")
	}
	c := enter(t, socket, "", false)
	c.send(command(cmdWrite, 0, 1, 0, 1<<20, make([]byte, 1000))) // and no more
	c.nc.Close()
	c = enter(t, socket, "", false)
	c.send(command(cmdRead, 0, 1, 0, 512, nil)[:20])
	c.nc.Close()
	if r := witness.do(cmdRead, 0, 0, 512, nil); r.value != 0 {
		t.Error(r)
	}
	waitFor(t, "the others to be gone", func() bool { return s.Stats().Open == 1 })
	if m.Allocated() != 0 {
		t.Error("half a write was written")
	}
}

// TestSlowReader: a client that asks and does not read what it gets costs what
// it may have in memory, and nobody else notices.
func TestSlowReader(t *testing.T) {
	const limit = 4 << 20
	d := &counting{Device: memory(t, 64<<20)}
	_, socket := serve(t, Options{MaxBytes: limit, MaxRequests: 64}, Export{Device: d})
	slow := enter(t, socket, "", false)
	other := enter(t, socket, "", false)

	before := heap()
	written := make(chan int, 1)
	go func() { // until the server reads no more
		n := 0
		for slow.nc.SetWriteDeadline(time.Now().Add(500*time.Millisecond)) == nil {
			var b []byte
			for i := range 100 {
				b = append(b, command(cmdRead, 0, uint64(n+i), 0, 128<<10, nil)...)
			}
			k, err := slow.nc.Write(b)
			if n += k / requestSize; err != nil {
				break
			}
		}
		written <- n
	}()
	for i := range 200 {
		if r := other.do(cmdRead, 0, uint64(i)*4096, 4096, nil); r.value != 0 {
			t.Fatal(r)
		}
	}
	n := <-written
	if used := int64(heap()) - int64(before); used > 3*limit {
		t.Errorf("a client that does not read costs %d bytes; its limit is %d", used, limit)
	}
	// 4 MiB are 32 replies; a few more lie in the socket's buffer.
	if got := d.reads.Load() - 200; got > 64 {
		t.Errorf("%d of %d requests were carried out for a client that reads nothing", got, n)
	}
	for i := range n { // and when it reads, all is there
		slow.nc.SetDeadline(time.Now().Add(20 * time.Second))
		if r := slow.reply(128 << 10); r.value != 0 || r.cookie != uint64(i) {
			t.Fatalf("reply %d: %v", i, r)
		}
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestIdleCost: a connection that was busy and has nothing to do gives its
// memory back.
func TestIdleCost(t *testing.T) {
	const conns = 8
	_, socket := serve(t, Options{}, Export{Device: memory(t, 64<<20)})
	work := func(c *client) {
		for range 2 {
			for i := range 64 {
				c.send(command(cmdRead, 0, uint64(i), 0, 64<<10, nil))
			}
			for range 64 {
				c.reply(64 << 10)
			}
			c.do(cmdWrite, 0, 0, 1<<20, make([]byte, 1<<20))
		}
		c.do(cmdFlush, 0, 0, 0, nil) // its reply leaves after the buffers of the others were given back
	}
	work(enter(t, socket, "", false)) // what all share is there now
	runtime.GC()                      // pools forget in two steps
	before := heap()
	for range conns {
		work(enter(t, socket, "", false))
	}
	runtime.GC()
	if each := (int64(heap()) - int64(before)) / conns; each > 160<<10 {
		t.Errorf("an idle connection costs %d bytes", each)
	} else {
		t.Logf("an idle connection costs %d bytes", each)
	}
}

// TestSlowWriter: payload that comes a byte at a time, or never, holds nobody up.
func TestSlowWriter(t *testing.T) {
	s, socket := serve(t, Options{}, Export{Device: memory(t, 1<<20)})
	other := enter(t, socket, "", false)
	c := enter(t, socket, "", false)
	b := command(cmdWrite, 0, 1, 0, 512, fill(512, 1))
	for i := range b[:200] {
		c.send(b[i : i+1])
	}
	if r := other.do(cmdFlush, 0, 0, 0, nil); r.value != 0 {
		t.Error(r)
	}
	c.send(b[200:])
	if r := c.reply(0); r.value != 0 {
		t.Error(r)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c.send(b[:300]) // never finished
	if err := s.Remove(ctx, ""); err != nil {
		t.Errorf("half a request kept the export: %v", err)
	}
}

// TestStalledDevice: clients that go away leave no connection behind once the
// device answers, and one that stays gets its answer.
func TestStalledDevice(t *testing.T) {
	f := blk.NewFault(memory(t, 1<<20), 1)
	f.Add(blk.Rule{Stall: true})
	s, socket := serve(t, Options{}, Export{Device: f})
	stays := enter(t, socket, "", false)
	stays.send(command(cmdWrite, 0, 9, 0, 512, fill(512, 4)))
	for range 8 {
		c := enter(t, socket, "", false)
		c.send(command(cmdRead, 0, 1, 0, 4096, nil))
		c.send(command(cmdWrite, 0, 1, 4096, 32<<10, fill(32<<10, 1)))
		waitFor(t, "the requests to arrive", func() bool { return f.Held()%2 == 1 })
		c.nc.Close()
	}
	f.Clear()
	f.Release()
	if r := stays.reply(0); r.cookie != 9 || r.value != 0 {
		t.Error(r)
	}
	waitFor(t, "the others to be gone", func() bool { return s.Stats().Open == 1 })
}

func TestTooManyConns(t *testing.T) {
	s, socket := serve(t, Options{MaxConns: 2}, Export{Device: memory(t, 1<<20)})
	a, b := dialClient(t, socket), enter(t, socket, "", false)
	a.greet(3)
	c := dialClient(t, socket)
	c.wantEnd("a third connection")
	b.nc.Close()
	waitFor(t, "the second to be gone", func() bool { return s.Stats().Open == 1 })
	enter(t, socket, "", false)
	if n := s.Stats(); n.Refused != 1 || n.Connections != 3 {
		t.Errorf("%+v", n)
	}
}

// TestSilentClient: who does not negotiate does not stay.
func TestSilentClient(t *testing.T) {
	_, socket := serve(t, Options{Handshake: 50 * time.Millisecond}, Export{Device: memory(t, 1<<20)})
	c := dialClient(t, socket)
	c.greet(3)
	c.wantEnd("after the time for negotiating")
}

// sockets is a connected pair, the server's end first.
func sockets(t testing.TB) (ours, theirs net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	var c [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		if c[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	t.Cleanup(func() { c[0].Close(); c[1].Close() })
	return c[0], c[1]
}

// FuzzHaggle: whatever comes, the negotiation ends, and what it says is made of
// whole replies.
func FuzzHaggle(f *testing.F) {
	hello := []byte{0, 0, 0, 3}
	for _, seed := range [][]byte{
		option(optList, nil), option(optGo, infoData("x", 0, 1, 2, 3)), option(optInfo, infoData("")),
		append(option(optStructuredReply, nil), option(optSetMetaContext, metaData("x", "base:", allocationName))...),
		option(optExportName, []byte("x")), option(optAbort, nil), option(optListMetaContext, []byte{0, 0, 0, 1}),
	} {
		f.Add(append(bytes.Clone(hello), seed...))
	}
	m := memory(f, 1<<20)
	s, err := NewServer(Options{Reactor: testReactor})
	if err != nil {
		f.Fatal(err)
	}
	if err := s.Add(Export{Name: "x", Description: "d", Device: m}); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var out bytes.Buffer
		g, err := haggle(&pair{bytes.NewBuffer(in), &out}, s)
		if (g == nil) == (err == nil) {
			t.Fatalf("%+v and %v", g, err)
		}
		b := out.Bytes()[18:]
		for len(b) >= 20 && binary.BigEndian.Uint64(b) == magicOptReply {
			n := binary.BigEndian.Uint32(b[16:])
			if uint64(n) > uint64(len(b)-20) {
				t.Fatalf("a reply of %d bytes with %d left", n, len(b)-20)
			}
			b = b[20+n:]
		}
		if len(b) != 0 && len(b) != 10 && len(b) != 134 { // the answer to NBD_OPT_EXPORT_NAME
			t.Fatalf("%d bytes that are no reply", len(b))
		}
	})
}

// FuzzRequests: whatever comes, nothing outside of the volume is touched, and
// the connection ends when the client's bytes do.
func FuzzRequests(f *testing.F) {
	for _, seed := range [][]byte{
		command(cmdRead, 0, 1, 0, 4096, nil), command(cmdWrite, cmdFlagFUA, 2, 512, 512, fill(512, 1)), command(cmdFlush, 0, 3, 0, 0, nil),
		append(command(cmdTrim, 0, 4, 0, 8192, nil), command(cmdBlockStatus, cmdFlagReqOne, 5, 0, 8192, nil)...),
		command(cmdWriteZeroes, cmdFlagFastZero|cmdFlagNoHole, 6, ^uint64(511), 1024, nil), command(cmdCache, 0, 7, 0, 512, nil),
		command(cmdWrite, 0, 8, 0, 20<<10, make([]byte, 20<<10)), command(99, 0xffff, 9, 1, 1, nil), command(cmdDisc, 0, 0, 0, 0, nil),
	} {
		f.Add(seed, true)
		f.Add(seed, false)
	}
	s, err := NewServer(Options{Reactor: testReactor, MaxRequests: 8, MaxBytes: 2 * recvSize, Linger: time.Second})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, in []byte, structured bool) {
		g := newGuarded(t, 64<<10)
		x, err := newExport(Export{Device: g})
		if err != nil {
			t.Fatal(err)
		}
		ours, theirs := sockets(t)
		c := newConn(s, ours, x)
		c.structured, c.allocation = structured, structured
		done := make(chan error, 1)
		go func() { done <- c.serve() }()
		go func() {
			theirs.Write(in)
			theirs.(*net.UnixConn).CloseWrite()
		}()
		io.Copy(io.Discard, theirs)
		<-done
		g.check()
	})
}
