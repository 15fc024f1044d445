package nbd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/rdsd/rdsd/blk"
)

// noting is a device that notes what it is asked.
type noting struct {
	blk.State
	mu  sync.Mutex
	log []string // guarded by mu
	err error    // how everything fails; set before it is served
}

func newNoting(info blk.Info) *noting {
	d := &noting{}
	d.SetInfo(&info)
	return d
}

func (d *noting) Submit(batch []*blk.Request) {
	d.mu.Lock()
	for _, r := range batch {
		d.log = append(d.log, fmt.Sprintf("%v %d+%d %v", r.Op, r.Off, r.Len, r.Flags))
		r.Err = d.err
	}
	d.mu.Unlock()
	blk.Complete(batch)
}

func (d *noting) Close() error { return nil }

func (d *noting) asked() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := strings.Join(d.log, ", ")
	d.log = nil
	return s
}

var everything = blk.Info{Size: 1 << 20, LogicalBlock: 512, PhysicalBlock: 512, MaxBytes: blk.MaxIO, MaxDiscard: blk.MaxSize,
	MaxWriteZeroes: blk.MaxSize, FUA: true, WriteCache: true, FastZero: true, MultiConn: true}

// TestFlagsReachTheDevice: what a client asks for is what the device is asked for, no
// less and no more, in the connection's first request and in those that use its memory
// again.
func TestFlagsReachTheDevice(t *testing.T) {
	d := newNoting(everything)
	_, socket := serve(t, Options{}, Export{Device: d})
	c := enter(t, socket, "", true)
	for range 2 {
		for _, x := range []struct {
			cmd, flags uint16
			op         blk.Op
			want       blk.Flags
		}{
			{cmdWrite, cmdFlagFUA, blk.OpWrite, blk.FUA},
			{cmdWrite, 0, blk.OpWrite, 0},
			{cmdRead, cmdFlagFUA, blk.OpRead, 0},
			{cmdRead, cmdFlagDF, blk.OpRead, 0},
			{cmdTrim, cmdFlagFUA, blk.OpDiscard, blk.FUA},
			{cmdTrim, 0, blk.OpDiscard, 0},
			{cmdWriteZeroes, cmdFlagNoHole, blk.OpWriteZeroes, blk.NoUnmap},
			{cmdWriteZeroes, cmdFlagFastZero, blk.OpWriteZeroes, blk.FastZero},
			{cmdWriteZeroes, cmdFlagFUA | cmdFlagNoHole | cmdFlagFastZero, blk.OpWriteZeroes, blk.FUA | blk.NoUnmap | blk.FastZero},
			{cmdWriteZeroes, 0, blk.OpWriteZeroes, 0},
			{cmdFlush, 0, blk.OpFlush, 0},
		} {
			off, n := uint64(8192), uint32(1536)
			if x.cmd == cmdFlush {
				off, n = 0, 0
			}
			var payload []byte
			if x.cmd == cmdWrite {
				payload = make([]byte, n)
			}
			if r := c.do(x.cmd, x.flags, off, n, payload); r.value != 0 {
				t.Errorf("%v with flags %#x: %v", x.op, x.flags, r)
			}
			if got, want := d.asked(), fmt.Sprintf("%v %d+%d %v", x.op, off, n, x.want); got != want {
				t.Errorf("flags %#x: asked %q, want %q", x.flags, got, want)
			}
		}
	}
}

// TestTransmissionFlags: each of them has one reason.
func TestTransmissionFlags(t *testing.T) {
	all := transmissionFlags(&everything, true)
	for what, c := range map[string]struct {
		change func(i *blk.Info)
		less   uint16
		more   uint16
	}{
		"no FUA":        {func(i *blk.Info) { i.FUA = false }, FlagSendFUA, 0},
		"no discard":    {func(i *blk.Info) { i.MaxDiscard = 0 }, FlagSendTrim, 0},
		"no zeroes":     {func(i *blk.Info) { i.MaxWriteZeroes = 0 }, FlagSendWriteZeroes | FlagSendFastZero, 0},
		"no fast ones":  {func(i *blk.Info) { i.FastZero = false }, FlagSendFastZero, 0},
		"flush for one": {func(i *blk.Info) { i.MultiConn = false }, FlagCanMultiConn, 0},
		"rotational":    {func(i *blk.Info) { i.Rotational = true }, 0, FlagRotational},
		"read-only":     {func(i *blk.Info) { i.ReadOnly = true }, FlagSendTrim | FlagSendWriteZeroes | FlagSendFastZero, FlagReadOnly},
	} {
		i := everything
		c.change(&i)
		if got, want := transmissionFlags(&i, true), all&^c.less|c.more; got != want {
			t.Errorf("%s: flags %#x, want %#x", what, got, want)
		}
	}
	if got := transmissionFlags(&everything, false); got != all&^FlagSendDF {
		t.Errorf("simple replies: flags %#x", got)
	}
}

// TestFailuresAreAnswered, with a text that is bounded, and without data.
func TestFailuresAreAnswered(t *testing.T) {
	d := newNoting(everything)
	d.err = fmt.Errorf("%s: %w", strings.Repeat("long ", 200), blk.ErrMedium)
	s, socket := serve(t, Options{}, Export{Device: d})
	for _, structured := range []bool{false, true} {
		c := enter(t, socket, "", structured)
		before := s.Stats()
		for _, cmd := range []uint16{cmdRead, cmdWrite, cmdFlush, cmdTrim, cmdWriteZeroes} {
			n := uint32(512)
			if cmd == cmdFlush {
				n = 0
			}
			var payload []byte
			if cmd == cmdWrite {
				payload = make([]byte, n)
			}
			if r := c.do(cmd, 0, 0, n, payload); r.value != errIO || len(r.text) > maxMessage || structured && !strings.HasPrefix(r.text, "long ") {
				t.Errorf("command %d: %v", cmd, r)
			}
		}
		if after := s.Stats(); after.Failed-before.Failed != 5 || after.Requests-before.Requests != 5 {
			t.Errorf("%d of %d requests failed; want 5 of 5", after.Failed-before.Failed, after.Requests-before.Requests)
		}
	}
	if !errors.Is(d.err, blk.ErrMedium) {
		t.Error(d.err)
	}
}

// TestInTwoParts: a command may come in two segments that meet anywhere; what is
// behind it in the second is another command.
func TestInTwoParts(t *testing.T) {
	m := memory(t, 1<<20)
	s, socket := serve(t, Options{}, Export{Device: m}, Export{Name: "ro", Device: m, ReadOnly: true})
	for _, name := range []string{"", "ro"} {
		c := enter(t, socket, name, false)
		for _, n := range []int{512, bigWrite - 512, bigWrite, bigWrite + 512, recvSize} {
			first := command(cmdWrite, 0, 1, 0, uint32(n), fill(n, byte(n>>9)))
			all := append(first, command(cmdFlush, 0, 2, 0, 0, nil)...)
			for _, at := range []int{1, 27, 28, 29, 28 + n/2, 28 + n - 1, 28 + n, 28 + n + 1, 28 + n + 27} {
				before := s.Stats().BytesIn
				c.send(all[:at])
				waitFor(t, "the first part to be read", func() bool { return s.Stats().BytesIn == before+uint64(at) })
				c.send(all[at:])
				want := uint32(0)
				if name == "ro" {
					want = errPerm
				}
				seen := map[uint64]uint32{}
				for range 2 {
					r := c.reply(0)
					seen[r.cookie] = r.value
				}
				if len(seen) != 2 || seen[1] != want || seen[2] != 0 {
					t.Fatalf("export %q, %d bytes in parts of %d and the rest: %v", name, n, at, seen)
				}
			}
			if name == "" {
				if r := c.do(cmdRead, 0, 0, uint32(n), nil); !bytes.Equal(r.data, fill(n, byte(n>>9))) {
					t.Fatalf("%d bytes: something else was written", n)
				}
			}
		}
	}
}

// TestOptionEdges: the longest data that is read, the longest that is skipped, and a
// byte more of each; the longest name.
func TestOptionEdges(t *testing.T) {
	_, socket := serve(t, Options{}, Export{Device: memory(t, 1<<20)})
	c := dialClient(t, socket)
	c.greet(3)
	c.want("the longest that is read", 77, make([]byte, maxOptionData), repErrUnsup)
	c.want("a byte more", 77, make([]byte, maxOptionData+1), repErrTooBig)
	c.want("the longest that is skipped", 77, make([]byte, maxSkip), repErrTooBig)
	c.want("the longest name", optInfo, infoData(strings.Repeat("a", maxString)), repErrUnknown)
	c.want("a byte more", optInfo, infoData(strings.Repeat("a", maxString+1)), repErrInvalid)
	c.want("still alive", optInfo, infoData(""), repAck)
	for what, o := range map[string]struct {
		opt, n uint32
	}{"longer than what is skipped": {77, maxSkip + 1}, "the old way in, with a name that is too long": {optExportName, maxOptionData + 1}} {
		c := dialClient(t, socket)
		c.greet(3)
		c.send(binary.BigEndian.AppendUint32(option(o.opt, nil)[:12], o.n))
		c.wantEnd(what)
	}
}

// TestAllIsGivenBack: whatever was asked for and however it ended, a connection at
// rest holds no request and no memory, and a server without clients no connection.
func TestAllIsGivenBack(t *testing.T) {
	s, socket := serve(t, Options{}, Export{Device: memory(t, 4<<20)})
	c := enter(t, socket, "", true)
	for range 3 {
		c.do(cmdWrite, 0, 0, 512, make([]byte, 512))
		c.do(cmdWrite, 0, 0, 1<<20, make([]byte, 1<<20))
		c.do(cmdWrite, 0, 8<<20, 512, make([]byte, 512))
		c.do(cmdWrite, 0, 8<<20, 1<<20, make([]byte, 1<<20))
		c.do(cmdRead, 0, 0, 1<<20, nil)
		c.do(cmdRead, 0, 8<<20, 1<<20, nil)
		c.do(cmdBlockStatus, 0, 0, 4<<20, nil)
		c.do(cmdCache, 0, 0, 4<<20, nil)
		c.do(cmdFlush, 0, 0, 0, nil)
	}
	s.mu.Lock()
	var conns []*conn
	for h := range s.sessions {
		conns = append(conns, h.c)
	}
	s.mu.Unlock()
	if len(conns) != 1 {
		t.Fatalf("%d connections", len(conns))
	}
	k := conns[0]
	atRest := func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.inFlight == 0 && k.bytes == 0 && !k.sending && !k.looking && k.out.head == nil
	}
	waitFor(t, "a connection at rest to hold nothing", atRest)
	// In the middle of a large write, with a read in flight.
	c.send(append(command(cmdRead, 0, 1, 0, 1<<20, nil), command(cmdWrite, 0, 2, 0, 1<<20, make([]byte, 1000))...))
	c.nc.Close()
	waitFor(t, "the connection to end", func() bool { return s.Stats().Open == 0 })
	if !atRest() {
		t.Errorf("%d requests and %d bytes are left of a connection that has ended", k.inFlight, k.bytes)
	}
}

// TestOffsetsAndOddLengths: a reply says where its data belongs, and a refused write
// of a single byte has its payload skipped like any other.
func TestOffsetsAndOddLengths(t *testing.T) {
	_, socket := serve(t, Options{}, Export{Device: memory(t, 1<<20)})
	c := enter(t, socket, "", true)
	for _, n := range []uint32{1, 2, 511} {
		if r := c.do(cmdWrite, 0, 0, n, make([]byte, n)); r.value != errInval {
			t.Errorf("a write of %d bytes: %v", n, r)
		}
	}
	c.send(command(cmdRead, 0, 7, 4096, 512, nil))
	b := c.recv(20 + 8 + 512)
	if be := binary.BigEndian; be.Uint64(b[8:]) != 7 || be.Uint32(b[16:]) != 8+512 || be.Uint64(b[20:]) != 4096 {
		t.Errorf("a reply begins % x", b[:28])
	}
}

// TestStatsCountBytes: what goes over the sockets in the transmission phase is counted, both ways.
func TestStatsCountBytes(t *testing.T) {
	s, socket := serve(t, Options{}, Export{Device: memory(t, 1<<20)})
	c := enter(t, socket, "", false)
	before := s.Stats()
	var in, out uint64
	for _, n := range []int{512, bigWrite, recvSize} {
		c.send(append(command(cmdWrite, 0, 1, 0, uint32(n), fill(n, 3)), command(cmdRead, 0, 2, 0, uint32(n), nil)...))
		c.recv(16 + 16 + n) // in either order
		in, out = in+uint64(28+n+28), out+uint64(16+16+n)
	}
	waitFor(t, "all bytes to be counted", func() bool {
		now := s.Stats()
		return now.BytesIn-before.BytesIn == in && now.BytesOut-before.BytesOut == out
	})
}
