package nbd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
)

// fill is n bytes that differ from their neighbours.
func fill(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i>>9)*31 + byte(i) + seed
	}
	return b
}

// TestCommands: every command, with both kinds of reply.
func TestCommands(t *testing.T) {
	for name, structured := range map[string]bool{"simple": false, "structured": true} {
		t.Run(name, func(t *testing.T) {
			m := memory(t, 64<<20)
			_, socket := serve(t, Options{}, Export{Device: m})
			c := enter(t, socket, "", structured)
			want := func(what string, r reply, data []byte) {
				t.Helper()
				if r.value != 0 || !bytes.Equal(r.data, data) {
					t.Fatalf("%s: %v", what, r)
				}
				if r.structured != (structured && data != nil) {
					t.Errorf("%s: a reply of the other kind", what)
				}
			}
			for _, n := range []int{512, 4096, bigWrite - 512, bigWrite, 100 << 10, recvSize, 1 << 20, maxPayload} {
				b := fill(n, byte(n>>9))
				want("write", c.do(cmdWrite, 0, 4096, uint32(n), b), nil)
				want("read", c.do(cmdRead, 0, 4096, uint32(n), nil), b)
			}
			b := fill(8192, 3)
			want("write with FUA", c.do(cmdWrite, cmdFlagFUA, 0, 8192, b), nil)
			want("read with FUA, which means nothing", c.do(cmdRead, cmdFlagFUA, 0, 8192, nil), b)
			want("flush", c.do(cmdFlush, 0, 0, 0, nil), nil)
			want("cache", c.do(cmdCache, 0, 0, 32<<20, nil), nil)
			want("write zeroes", c.do(cmdWriteZeroes, cmdFlagNoHole|cmdFlagFUA, 512, 512, nil), nil)
			want("fast write zeroes", c.do(cmdWriteZeroes, cmdFlagFastZero, 1024, 512, nil), nil)
			clear(b[512:1536])
			want("read of zeroes", c.do(cmdRead, 0, 0, 8192, nil), b)
			want("trim", c.do(cmdTrim, 0, 0, 64<<20, nil), nil)
			if m.Allocated() != 0 {
				t.Errorf("%d bytes are allocated after everything was trimmed", m.Allocated())
			}
			if structured {
				want("read in one piece", c.do(cmdRead, cmdFlagDF, 0, 65536, nil), make([]byte, 65536))
			}
		})
	}
}

func TestBlockStatus(t *testing.T) {
	m := memory(t, 8<<30)
	_, socket := serve(t, Options{}, Export{Device: m})
	for _, off := range []uint64{1 << 20, 6 << 30} {
		if err := blk.WriteAt(m, fill(64<<10, 1), off, 0); err != nil {
			t.Fatal(err)
		}
	}
	c := enter(t, socket, "", true)
	type extent struct{ n, state uint32 }
	status := func(flags uint16, off uint64, n uint32) (out []extent) {
		t.Helper()
		r := c.do(cmdBlockStatus, flags, off, n, nil)
		if r.value != 0 || r.kind != replyBlockStatus || binary.BigEndian.Uint32(r.data) != allocationID {
			t.Fatalf("%v, kind %d", r, r.kind)
		}
		for b := r.data[4:]; len(b) > 0; b = b[8:] {
			out = append(out, extent{binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])})
		}
		return out
	}
	for _, w := range []struct {
		flags uint16
		off   uint64
		n     uint32
		want  []extent
	}{
		{0, 0, 2 << 20, []extent{{1 << 20, 3}, {64 << 10, 0}, {1<<20 - 64<<10, 3}}},
		{cmdFlagReqOne, 0, 2 << 20, []extent{{1 << 20, 3}}},
		{cmdFlagReqOne, 0, 4096, []extent{{4096, 3}}},
		{0, 1<<20 + 512, 512, []extent{{512, 0}}},
		{0, 6 << 30, 512, []extent{{512, 0}}},
		{0, 2 << 30, 1<<32 - 512, []extent{{1<<32 - 512, 3}}},
	} {
		got := status(w.flags, w.off, w.n)
		if len(got) != len(w.want) {
			t.Errorf("at %d, length %d: %v, want %v", w.off, w.n, got, w.want)
			continue
		}
		for i := range got {
			if got[i] != w.want[i] {
				t.Errorf("at %d, length %d: %v, want %v", w.off, w.n, got, w.want)
			}
		}
	}
}

// TestRefusedCommands: B5 through the protocol, with the error values it asks for.
func TestRefusedCommands(t *testing.T) {
	const size = 1 << 20
	m := memory(t, size)
	before := fill(size, 9)
	if err := blk.WriteAt(m, before, 0, 0); err != nil {
		t.Fatal(err)
	}
	_, socket := serve(t, Options{}, Export{Device: m}, Export{Name: "ro", Device: m, ReadOnly: true})
	type bad struct {
		what       string
		cmd, flags uint16
		off        uint64
		n          uint32
		want       uint32
	}
	both := []bad{
		{"read beyond the end", cmdRead, 0, size, 512, errInval},
		{"read across the end", cmdRead, 0, size - 512, 1024, errInval},
		{"read that wraps", cmdRead, 0, ^uint64(511), 1024, errInval},
		{"read of 4 GiB", cmdRead, 0, 0, 1<<32 - 512, errInval},
		{"read of nothing", cmdRead, 0, 0, 0, errInval},
		{"misaligned read", cmdRead, 0, 1, 512, errInval},
		{"block status beyond the end", cmdBlockStatus, 0, size, 512, errInval},
		{"cache beyond the end", cmdCache, 0, size, 512, errInval},
		{"flush with a range", cmdFlush, 0, 512, 512, errInval},
		{"unknown command", 99, 0, 0, 0, errInval},
		{"unknown flag", cmdRead, 1 << 9, 0, 512, errInval},
		{"flag of another command", cmdRead, cmdFlagNoHole, 0, 512, errInval},
	}
	writes := []bad{
		{"write beyond the end", cmdWrite, 0, size, 512, errNoSpc},
		{"write across the end", cmdWrite, 0, size - 512, 1024, errNoSpc},
		{"write of more than there may be", cmdWrite, 0, 0, maxPayload + 512, errNoSpc},
		{"write that wraps", cmdWrite, 0, ^uint64(511), 1024, errNoSpc},
		{"misaligned write", cmdWrite, 0, 512, 511, errInval},
		{"write of nothing", cmdWrite, 0, 0, 0, errInval},
		{"write with a flag of another command", cmdWrite, cmdFlagReqOne, 0, 512, errInval},
		{"trim across the end", cmdTrim, 0, size - 512, 1024, errInval},
		{"write zeroes across the end", cmdWriteZeroes, 0, size - 512, 1024, errNoSpc},
	}
	readOnly := []bad{
		{"write", cmdWrite, 0, 0, 512, errPerm},
		{"large write", cmdWrite, 0, 0, 512 << 10, errPerm},
		{"trim", cmdTrim, 0, 0, 512, errPerm},
		{"write zeroes", cmdWriteZeroes, 0, 0, 512, errPerm},
	}
	for _, structured := range []bool{false, true} {
		for export, list := range map[string][]bad{"": append(both, writes...), "ro": append(both, readOnly...)} {
			c := enter(t, socket, export, structured)
			for _, b := range list {
				var payload []byte
				if b.cmd == cmdWrite {
					payload = make([]byte, b.n)
				}
				r := c.do(b.cmd, b.flags, b.off, b.n, payload)
				if r.value != b.want || r.structured != structured || structured && r.text == "" {
					t.Errorf("%s, export %q: %v; want error %d", b.what, export, r, b.want)
				}
			}
			if r := c.do(cmdRead, 0, 0, size, nil); !bytes.Equal(r.data, before) {
				t.Errorf("export %q: something was written, or cannot be read any more: %v", export, r)
			}
		}
	}
	c := enter(t, socket, "", false)
	if r := c.do(cmdRead, cmdFlagDF, 0, 512, nil); r.value != errInval {
		t.Errorf("DF without structured replies: %v", r)
	}
}

// TestErrorValues: what the device says and what the client hears.
func TestErrorValues(t *testing.T) {
	for _, c := range []struct {
		err  error
		cmd  uint16
		want uint32
	}{
		{nil, cmdRead, 0},
		{syscall.EIO, cmdRead, errIO},
		{io.ErrUnexpectedEOF, cmdRead, errIO},
		{syscall.ENOSPC, cmdWrite, errNoSpc},
		{syscall.EDQUOT, cmdWrite, errNoSpc},
		{syscall.EFBIG, cmdWrite, errNoSpc},
		{syscall.ENOMEM, cmdRead, errNoMem},
		{syscall.EACCES, cmdWrite, errPerm},
		{blk.ErrReadOnly, cmdTrim, errPerm},
		{blk.ErrRange, cmdRead, errInval},
		{blk.ErrRange, cmdTrim, errInval},
		{blk.ErrRange, cmdWrite, errNoSpc},
		{blk.ErrNotSupported, cmdWriteZeroes, errNotSup},
		{blk.ErrNotSupported, cmdTrim, errInval},
		{blk.ErrSyncFailed, cmdFlush, errIO},
		{blk.ErrClosed, cmdRead, errShutdown},
		{syscall.ETIMEDOUT, cmdRead, errIO},
	} {
		if got := errorValue(c.err, c.cmd); got != c.want {
			t.Errorf("%v for command %d: %d, want %d", c.err, c.cmd, got, c.want)
		}
	}
}

// TestPipelined: many requests of all sizes at once, replies in any order.
func TestPipelined(t *testing.T) {
	const slots, each = 200, 96 << 10
	for name, dev := range map[string]func() blk.Device{
		"memory":  func() blk.Device { return memory(t, slots*each) },
		"delayed": func() blk.Device { return jittery(memory(t, slots*each)) },
	} {
		t.Run(name, func(t *testing.T) {
			d := dev()
			_, socket := serve(t, Options{MaxRequests: 16, MaxBytes: 1 << 20}, Export{Device: d})
			c := enter(t, socket, "", true)
			size := func(i int) int { return 512 << (i % 8) } // to 64 KiB, both sides of bigWrite
			go func() {
				for i := range slots {
					c.nc.Write(command(cmdWrite, 0, uint64(i), uint64(i*each), uint32(size(i)), fill(size(i), byte(i))))
				}
			}()
			seen := map[uint64]bool{}
			for range slots {
				r := c.reply(0)
				if r.value != 0 || seen[r.cookie] {
					t.Fatalf("write %d: %v", r.cookie, r)
				}
				seen[r.cookie] = true
			}
			go func() {
				var b []byte
				for i := range slots {
					b = append(b, command(cmdRead, 0, uint64(i), uint64(i*each), uint32(size(i)), nil)...)
				}
				c.nc.Write(b)
			}()
			for range slots {
				r := c.reply(0)
				if i := int(r.cookie); r.value != 0 || !bytes.Equal(r.data, fill(size(i), byte(i))) {
					t.Fatalf("read %d: %v", i, r)
				}
			}
			d.Close()
		})
	}
}

// jittery delays every other request a little, so that completions come from
// other goroutines, and out of order.
func jittery(d blk.Device) blk.Device {
	f := blk.NewFault(d, 1)
	f.Add(blk.Rule{Chance: 0.25, Delay: time.Millisecond})
	f.Add(blk.Rule{Chance: 0.25, Delay: 100 * time.Microsecond})
	return f
}

// TestSpin: with spinning the same things happen.
func TestSpin(t *testing.T) {
	_, socket := serve(t, Options{Spin: 50 * time.Microsecond}, Export{Device: memory(t, 1<<20)})
	c := enter(t, socket, "", true)
	for i := range 200 {
		b := fill(4096, byte(i))
		if r := c.do(cmdWrite, 0, 0, 4096, b); r.value != 0 {
			t.Fatal(r)
		}
		if i%50 == 0 {
			time.Sleep(2 * attention) // until it is parked
		}
		if r := c.do(cmdRead, 0, 0, 4096, nil); !bytes.Equal(r.data, b) {
			t.Fatal(r)
		}
	}
}

// TestAnyConn: a connection that is no socket.
func TestAnyConn(t *testing.T) {
	s, _ := serve(t, Options{}, Export{Device: memory(t, 1<<20)})
	ours, theirs := net.Pipe()
	done := make(chan error, 1)
	go func() { done <- s.ServeConn(theirs) }()
	c := &client{t, ours}
	c.enter("", true)
	b := fill(200<<10, 5)
	go c.nc.Write(command(cmdWrite, 0, 1, 0, uint32(len(b)), b))
	if r := c.reply(0); r.value != 0 {
		t.Fatal(r)
	}
	if r := c.do(cmdRead, 0, 0, uint32(len(b)), nil); !bytes.Equal(r.data, b) {
		t.Fatal(r)
	}
	c.send(command(cmdDisc, 0, 0, 0, 0, nil))
	c.wantEnd("after disconnecting")
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestKernelConn: no negotiation, simple replies.
func TestKernelConn(t *testing.T) {
	s, _ := serve(t, Options{}, Export{Name: "x", Device: memory(t, 1<<20)})
	ours, theirs := net.Pipe()
	go s.ServeKernel(theirs, "x")
	c := &client{t, ours}
	if r := c.do(cmdRead, 0, 0, 512, nil); r.value != 0 || r.structured {
		t.Error(r)
	}
	ours.Close()
	ours, theirs = net.Pipe()
	if err := s.ServeKernel(theirs, "y"); !errors.Is(err, rdserr.ErrNotFound) {
		t.Error(err)
	}
	ours.Close()
}

// TestStoreErrors: B7 as a client sees it.
func TestStoreErrors(t *testing.T) {
	f := blk.NewFault(memory(t, 1<<20), 1)
	_, socket := serve(t, Options{}, Export{Device: f})
	c := enter(t, socket, "", true)
	f.Add(blk.Rule{Ops: blk.Ops(blk.OpRead), Off: 4096, Len: 512, Err: blk.ErrMedium})
	f.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Off: 8192, Len: 512, Err: blk.ErrNoSpace})
	f.Add(blk.Rule{Ops: blk.Ops(blk.OpFlush), Count: 1, Err: blk.ErrMedium})
	for _, w := range []struct {
		what string
		r    reply
		want uint32
	}{
		{"read of the bad sector", c.do(cmdRead, 0, 0, 8192, nil), errIO},
		{"read beside it", c.do(cmdRead, 0, 0, 4096, nil), 0},
		{"write without space", c.do(cmdWrite, 0, 8192, 512, make([]byte, 512)), errNoSpc},
		{"write elsewhere", c.do(cmdWrite, 0, 0, 512, make([]byte, 512)), 0},
		{"first flush", c.do(cmdFlush, 0, 0, 0, nil), errIO},
		{"second flush", c.do(cmdFlush, 0, 0, 0, nil), errIO},
		{"write with FUA", c.do(cmdWrite, cmdFlagFUA, 0, 512, make([]byte, 512)), errIO},
		{"write without", c.do(cmdWrite, 0, 0, 512, make([]byte, 512)), 0},
	} {
		if w.r.value != w.want {
			t.Errorf("%s: %v; want error %d", w.what, w.r, w.want)
		}
	}
}

// TestResize: what grows can be used by who knows of it; what shrinks is gone.
func TestResize(t *testing.T) {
	m := memory(t, 1<<20)
	_, socket := serve(t, Options{}, Export{Device: m})
	c := enter(t, socket, "", true)
	if r := c.do(cmdWrite, 0, 1<<20, 512, make([]byte, 512)); r.value != errNoSpc {
		t.Error(r)
	}
	if err := m.Resize(2 << 20); err != nil {
		t.Fatal(err)
	}
	if r := c.do(cmdWrite, 0, 1<<20, 512, make([]byte, 512)); r.value != 0 {
		t.Error(r)
	}
	if err := m.Resize(512 << 10); err != nil {
		t.Fatal(err)
	}
	if r := c.do(cmdRead, 0, 512<<10, 512, nil); r.value != errInval {
		t.Error(r)
	}
	c2 := dialClient(t, socket)
	c2.greet(3)
	if size := binary.BigEndian.Uint64(c2.info("")[infoExport]); size != 512<<10 {
		t.Errorf("a new client sees %d bytes", size)
	}
}

// TestDisconnect: what was asked for before NBD_CMD_DISC is answered.
func TestDisconnect(t *testing.T) {
	f := blk.NewFault(memory(t, 1<<20), 1)
	_, socket := serve(t, Options{}, Export{Device: f})
	f.Add(blk.Rule{Ops: blk.Ops(blk.OpRead), Stall: true})
	c := enter(t, socket, "", false)
	c.send(append(command(cmdRead, 0, 7, 0, 512, nil), command(cmdDisc, 0, 0, 0, 0, nil)...))
	waitFor(t, "the read to be held", func() bool { return f.Held() == 1 })
	f.Release()
	if r := c.reply(512); r.cookie != 7 || r.value != 0 {
		t.Error(r)
	}
	c.wantEnd("after the last reply")
}

// TestShutdown: what is in flight is answered, what comes is refused, and a
// device that does not answer is not waited for beyond the context.
func TestShutdown(t *testing.T) {
	f := blk.NewFault(memory(t, 1<<20), 1)
	s, socket := serve(t, Options{}, Export{Device: f})
	f.Add(blk.Rule{Ops: blk.Ops(blk.OpRead), Stall: true})
	c := enter(t, socket, "", true)
	c.send(command(cmdRead, 0, 1, 0, 512, nil))
	waitFor(t, "the read to be held", func() bool { return f.Held() == 1 })

	short, cancel := context.WithCancel(context.Background())
	cancel()
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		done <- s.Shutdown(ctx)
	}()
	waitFor(t, "the shutdown to begin", func() bool { _, err := s.lookup(""); return err != nil })
	if r := c.do(cmdWrite, 0, 0, 512, make([]byte, 512)); r.value != errShutdown {
		t.Errorf("a write while the server shuts down: %v", r)
	}
	f.Release()
	if r := c.reply(512); r.cookie != 1 || r.value != 0 {
		t.Errorf("the read in flight: %v", r)
	}
	c.wantEnd("after the shutdown")
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := s.Shutdown(short); err != nil {
		t.Errorf("a second shutdown: %v", err)
	}
}

// TestLeave: where another server follows, what was read is carried out and answered,
// nothing is refused, and what was not read has no answer and has not been done.
func TestLeave(t *testing.T) {
	m := memory(t, 1<<20)
	f := blk.NewFault(m, 1)
	s, socket := serve(t, Options{MaxRequests: 1}, Export{Device: f})
	f.Add(blk.Rule{Ops: blk.Ops(blk.OpRead), Stall: true})
	c := enter(t, socket, "", true)
	c.send(command(cmdRead, 0, 1, 0, 512, nil))
	waitFor(t, "the read to be held", func() bool { return f.Held() == 1 })
	// It waits for the read, so nobody has looked at it.
	c.send(command(cmdWrite, 0, 2, 0, 512, bytes.Repeat([]byte{1}, 512)))
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		done <- s.Leave(ctx)
	}()
	waitFor(t, "the end to begin", func() bool { _, err := s.lookup(""); return err != nil })
	f.Release()
	if r := c.reply(512); r.cookie != 1 || r.value != 0 {
		t.Errorf("the read in flight: %v", r)
	}
	// The write was in the server's memory or not; if it was it is answered well.
	c.nc.SetReadDeadline(time.Now().Add(10 * time.Second))
	b, err := io.ReadAll(c.nc)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
	got := make([]byte, 512)
	if err := blk.ReadAt(m, got, 0); err != nil {
		t.Fatal(err)
	}
	if answered, written := len(b) > 0, got[0] == 1; answered != written {
		t.Errorf("the write behind it was answered (%x): %v; carried out: %v", b, answered, written)
	}
	if len(b) > 0 && (len(b) != simpleSize || binary.BigEndian.Uint32(b[4:]) != 0) {
		t.Errorf("it was answered with %x", b)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestRemove(t *testing.T) {
	m := memory(t, 1<<20)
	s, socket := serve(t, Options{}, Export{Name: "a", Device: m}, Export{Name: "b", Device: m})
	a, b := enter(t, socket, "a", true), enter(t, socket, "b", true)
	if err := s.Add(Export{Name: "a", Device: m}); !errors.Is(err, rdserr.ErrAddrInUse) {
		t.Errorf("a second export of the name: %v", err)
	}
	if err := s.Remove(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	a.wantEnd("its export is gone")
	if r := b.do(cmdRead, 0, 0, 512, nil); r.value != 0 {
		t.Errorf("another export: %v", r)
	}
	if err := s.Remove(t.Context(), "a"); !errors.Is(err, rdserr.ErrNotFound) {
		t.Errorf("removed twice: %v", err)
	}
	c := dialClient(t, socket)
	c.greet(3)
	c.want("go", optGo, infoData("a"), repErrUnknown)
}

func TestBadExports(t *testing.T) {
	s, err := NewServer(Options{})
	if err != nil {
		t.Fatal(err)
	}
	m := memory(t, 1<<20)
	for what, e := range map[string]Export{
		"long name":   {Name: strings.Repeat("x", 256), Device: m},
		"NUL":         {Name: "a\x00b", Device: m},
		"bad UTF-8":   {Name: "a\xff", Device: m},
		"description": {Description: "\xff", Device: m},
		"no device":   {Name: "a"},
	} {
		if err := s.Add(e); !errors.Is(err, rdserr.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, o := range []Options{{MaxConns: -1}, {MaxBytes: 1}, {Linger: -1}, {Spin: -1}} {
		if _, err := NewServer(o); !errors.Is(err, rdserr.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// TestCloseRefusesNothing: what comes in the moment of a Close has no answer, or that of
// the device, and never a refusal: the kernel, whose device gets its next connection
// from the next daemon, would take that for an error of the disk.
func TestCloseRefusesNothing(t *testing.T) {
	for range 5 {
		s, socket := serve(t, Options{}, Export{Device: memory(t, 1<<20)})
		var all sync.WaitGroup
		var answers atomic.Int64
		for range 8 {
			c := enter(t, socket, "", false)
			go func() { // ends with the connection
				b := bytes.Repeat(command(cmdFlush, 0, 7, 0, 0, nil), 8)
				for {
					if _, err := c.nc.Write(b); err != nil {
						return
					}
				}
			}()
			all.Go(func() {
				r := bufio.NewReader(c.nc)
				var b [16]byte
				for {
					if _, err := io.ReadFull(r, b[:]); err != nil {
						return
					}
					if e := binary.BigEndian.Uint32(b[4:]); e != 0 {
						t.Errorf("a flush was answered with %d", e)
						return
					}
					answers.Add(1)
				}
			})
		}
		for answers.Load() < 200 {
			time.Sleep(100 * time.Microsecond)
		}
		s.Close()
		all.Wait()
	}
}
