package nbd

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
)

// tape is a connection whose other end has said all it will say, and takes so many
// writes.
type tape struct {
	in     *bytes.Reader
	out    bytes.Buffer
	writes int // that are taken
}

var errTape = errors.New("no more is taken")

func newTape(said []byte, writes int) *tape { return &tape{in: bytes.NewReader(said), writes: writes} }

func (c *tape) Read(p []byte) (int, error) { return c.in.Read(p) }

func (c *tape) Write(p []byte) (int, error) {
	if c.writes--; c.writes < 0 {
		return 0, errTape
	}
	return c.out.Write(p)
}

func (c *tape) Close() error                     { return nil }
func (c *tape) LocalAddr() net.Addr              { return nil }
func (c *tape) RemoteAddr() net.Addr             { return nil }
func (c *tape) SetDeadline(time.Time) error      { return nil }
func (c *tape) SetReadDeadline(time.Time) error  { return nil }
func (c *tape) SetWriteDeadline(time.Time) error { return nil }

// TestNoHalfReplies: a reply that ends at any byte before its last is an error of the
// connection and ends no call; whole it does, with what it says.
func TestNoHalfReplies(t *testing.T) {
	data := bytes.Repeat([]byte{7}, 16)
	read := func() *call { return &call{cmd: cmdRead, off: 512, n: 16, buf: make([]byte, 16)} }
	write := func() *call { return &call{cmd: cmdWrite, off: 512, n: 16} }
	status := func() *call { return &call{cmd: cmdBlockStatus, off: 512, n: 1024, context: 5} }
	for what, c := range map[string]struct {
		k     func() *call
		reply []byte
		want  error
		ends  bool // the call
	}{
		"simple read":      {read, simpleReply(0, 1, data...), nil, true},
		"simple write":     {write, simpleReply(0, 1), nil, true},
		"simple error":     {read, simpleReply(errIO, 1), syscall.EIO, true},
		"data":             {read, chunk(replyFlagDone, replyOffsetData, 1, u64(512), data), nil, true},
		"a part":           {read, chunk(0, replyOffsetData, 1, u64(512), data[:1]), nil, false},
		"a hole":           {read, chunk(replyFlagDone, replyOffsetHole, 1, u64(512), u32(16)), nil, true},
		"nothing":          {write, chunk(replyFlagDone, replyNone, 1), nil, true},
		"an error":         {write, chunk(replyFlagDone, replyError, 1, u32(errNoSpc), u16(2), []byte("no")), syscall.ENOSPC, true},
		"of no words":      {write, chunk(replyFlagDone, replyError, 1, u32(errNoSpc), u16(0)), syscall.ENOSPC, true},
		"at an offset":     {write, chunk(replyFlagDone, replyErrorOffset, 1, u32(errNoSpc), u16(2), []byte("no"), u64(9)), syscall.ENOSPC, true},
		"of a kind unkown": {write, chunk(replyFlagDone, 1<<15+77, 1, u32(errPerm)), syscall.EPERM, true},
		"extents":          {status, chunk(replyFlagDone, replyBlockStatus, 1, u32(5), u32(512), u32(1), u32(512), u32(0)), nil, true},
	} {
		for cut := 0; cut <= len(c.reply); cut++ {
			k := c.k()
			k.done = make(chan struct{})
			cl := &Client{calls: map[uint64]*call{1: k}}
			err := cl.reply(bufio.NewReader(bytes.NewReader(c.reply[:cut])))
			ended := false
			select {
			case <-k.done:
				ended = true
			default:
			}
			if cut < len(c.reply) {
				if err != io.EOF && err != io.ErrUnexpectedEOF || ended || len(cl.calls) != 1 {
					t.Errorf("%s, %d of %d bytes: %v, ended: %v", what, cut, len(c.reply), err, ended)
				}
				continue
			}
			if err != nil || ended != c.ends || (len(cl.calls) == 0) != c.ends || !errors.Is(k.err, c.want) || c.want == nil && k.err != nil {
				t.Errorf("%s: %v, ended %v with %v; want %v, %v", what, err, ended, k.err, c.ends, c.want)
			}
			if k.cmd == cmdRead && c.ends && c.want == nil && (k.placed != 16 || k.buf[0] == 0 && what != "a hole") {
				t.Errorf("%s: %d bytes are placed: %v", what, k.placed, k.buf)
			}
		}
	}
}

// TestChunkSizes: how long a chunk of each kind may be, at its edges.
func TestChunkSizes(t *testing.T) {
	errOf := func(n int) []byte { // an error that fills n bytes
		return append(append(u32(errIO), u16(n-6)...), bytes.Repeat([]byte{'x'}, n-6)...)
	}
	for _, c := range []struct {
		what string
		k    call
		kind uint16
		data []byte
		ok   bool
	}{
		{"data of a byte", call{cmd: cmdRead, n: 16}, replyOffsetData, append(u64(0), 1), true},
		{"no data", call{cmd: cmdRead, n: 16}, replyOffsetData, u64(0), false},
		{"half an offset", call{cmd: cmdRead, n: 16}, replyOffsetData, u64(0)[:7], false},
		{"nothing", call{cmd: cmdWrite}, replyNone, nil, true},
		{"nothing, of a byte", call{cmd: cmdWrite}, replyNone, []byte{0}, false},
		{"a hole", call{cmd: cmdRead, n: 16}, replyOffsetHole, append(u64(0), u32(1)...), true},
		{"a short hole", call{cmd: cmdRead, n: 16}, replyOffsetHole, append(u64(0), u32(1)...)[:11], false},
		{"a long hole", call{cmd: cmdRead, n: 16}, replyOffsetHole, append(append(u64(0), u32(1)...), 0), false},
		{"an extent", call{cmd: cmdBlockStatus, n: 512, context: 1}, replyBlockStatus, append(append(u32(1), u32(512)...), u32(0)...), true},
		{"no extent", call{cmd: cmdBlockStatus, n: 512, context: 1}, replyBlockStatus, u32(1), false},
		{"half an extent", call{cmd: cmdBlockStatus, n: 512, context: 1}, replyBlockStatus, append(append(u32(1), u32(512)...), u16(0)...), false},
		{"an extent and a half", call{cmd: cmdBlockStatus, n: 512, context: 1}, replyBlockStatus, make([]byte, 16), false},
		{"the shortest error", call{}, replyError, errOf(6), true},
		{"a shorter one, by its number alone", call{}, replyError, errOf(6)[:5], true},
		{"too short for a number", call{}, replyError, errOf(6)[:3], false},
		{"a text to its end", call{}, replyError, errOf(20), true},
		{"a text beyond it", call{}, replyError, errOf(20)[:19], false},
		{"a text within it", call{}, replyErrorOffset, append(errOf(20), u64(1)...), true},
		{"an error that is none", call{}, replyError, append(u32(0), 0, 0), false},
		{"one of a kind to come", call{}, 1<<15 + 9, u32(errIO), true},
		{"a shorter one of those", call{}, 1<<15 + 9, u32(errIO)[:3], false},
		{"one of those that is none", call{}, 1<<15 + 9, u32(0), false},
		{"a kind to come", call{}, 9, u32(errIO), false},
		{"the longest", call{}, replyError, append(append(u32(errIO), u16(1)...), make([]byte, maxChunk-6)...), true},
		{"a byte longer", call{}, replyError, append(append(u32(errIO), u16(1)...), make([]byte, maxChunk-5)...), false},
	} {
		k := c.k
		k.buf = make([]byte, k.n)
		err := k.chunk(bufio.NewReader(bytes.NewReader(c.data)), c.kind, uint32(len(c.data)))
		if (err == nil) != c.ok || !c.ok && !errors.Is(err, rdserr.ErrProtocol) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	k := call{cmd: cmdWrite}
	if err := k.chunk(bufio.NewReader(bytes.NewReader(errOf(9))), replyError, 9); err != nil || !strings.HasSuffix(k.err.Error(), ": xxx") {
		t.Errorf("the text of an error: %v, %v", k.err, err)
	}
	// A status that says nothing is no answer to one, a read of less none to a read.
	for what, k := range map[string]*call{"status": {cmd: cmdBlockStatus, n: 1}, "read": {cmd: cmdRead, n: 2, placed: 1}} {
		k.done = make(chan struct{})
		c := &Client{calls: map[uint64]*call{1: k}}
		if err := c.finish(1, k); !errors.Is(err, rdserr.ErrProtocol) || len(c.calls) != 1 {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// whatAServerSays is all that a server says to a client that asks for name, and the
// same with another last answer.
func whatAServerSays(name string, last uint32) []byte {
	be := binary.BigEndian
	b := be.AppendUint16(be.AppendUint64(be.AppendUint64(nil, magicInit), magicOption), flagFixedNewstyle|flagNoZeroes)
	h := &haggling{out: b}
	h.reply(optStructuredReply, repAck)
	h.reply(optSetMetaContext, repMetaContext, u32(9), []byte(allocationName))
	h.reply(optSetMetaContext, repAck)
	h.reply(optGo, repInfo, u16(infoExport), u64(1<<20), u16(FlagHasFlags|FlagSendFlush))
	h.reply(optGo, repInfo, u16(infoBlockSize), u32(512), u32(4096), u32(1<<20))
	h.reply(optGo, last)
	return h.out
}

// TestClientNegotiates: a server that ends at any byte, or takes nothing any more at any
// moment, is an error; one that says all is understood.
func TestClientNegotiates(t *testing.T) {
	said := whatAServerSays("x", repAck)
	for cut := range said {
		c := &Client{nc: newTape(said[:cut], 99)}
		if err := c.negotiate("x"); !errors.Is(err, rdserr.ErrReset) {
			t.Fatalf("%d of %d bytes: %v", cut, len(said), err)
		}
	}
	writes := 0
	for ; ; writes++ {
		c := &Client{nc: newTape(said, writes)}
		err := c.negotiate("x")
		if err == nil {
			break
		}
		if !errors.Is(err, errTape) {
			t.Fatalf("%d writes: %v", writes, err)
		}
	}
	if writes != 4 {
		t.Errorf("%d writes were needed, want the flags and three options", writes)
	}
	nc := newTape(said, 99)
	c := &Client{nc: nc}
	if err := c.negotiate("x"); err != nil || !c.allocation || c.context != 9 || c.info.Size != 1<<20 || c.info.LogicalBlock != 512 ||
		c.info.PhysicalBlock != 4096 || c.info.MaxBytes != 1<<20 || !c.info.WriteCache {
		t.Errorf("%v: %+v, allocation %v in context %d", err, c.info, c.allocation, c.context)
	}
	h, err := haggle(newTape(nc.out.Bytes(), 99), oneExport(t, "x")) // as our server hears it
	if err != nil || h.x == nil || !h.structured || !h.allocation {
		t.Errorf("a server of ours agrees on %+v, %v", h, err)
	}
	for kind, want := range map[uint32]error{repErrUnknown: rdserr.ErrNotFound, repErrPolicy: rdserr.ErrPerm, repErrTLS: rdserr.ErrPerm,
		repErrShutdown: rdserr.ErrShutdown, repErrBlockSize: rdserr.ErrNotSupported, repErrUnsup: rdserr.ErrNotSupported, repErrInvalid: rdserr.ErrNotSupported} {
		c := &Client{nc: newTape(whatAServerSays("x", kind), 99)}
		if err := c.negotiate("x"); !errors.Is(err, want) {
			t.Errorf("refused with %#x: %v, want %v", kind, err, want)
		}
	}
	// An option is answered by as many replies as there may be, and no more.
	for n, ok := range map[int]bool{maxOptions - 1: true, maxOptions: false} {
		h := &haggling{}
		for range n {
			h.reply(optGo, repInfo)
		}
		h.reply(optGo, repAck)
		got := 0
		_, err := (&Client{nc: newTape(h.out, 9)}).option(optGo, nil, func(uint32, []byte) error { got++; return nil })
		if (err == nil) != ok || got != n && ok || !ok && !errors.Is(err, rdserr.ErrProtocol) {
			t.Errorf("%d replies, and one that ends them: %d heard, %v", n, got, err)
		}
	}
	for n, ok := range map[int]bool{maxOptionData: true, maxOptionData + 1: false} {
		h := &haggling{}
		h.reply(optGo, repInfo, make([]byte, n))
		h.reply(optGo, repAck)
		if _, err := (&Client{nc: newTape(h.out, 9)}).option(optGo, nil, nil); (err == nil) != ok || !ok && !errors.Is(err, rdserr.ErrProtocol) {
			t.Errorf("a reply of %d bytes: %v", n, err)
		}
	}
	stop := errors.New("enough")
	if _, err := (&Client{nc: newTape(said[18:], 9)}).option(optStructuredReply, nil, func(uint32, []byte) error { return stop }); err != nil {
		t.Errorf("the last reply was handed on: %v", err)
	}
	h2 := &haggling{}
	h2.reply(optGo, repInfo)
	if _, err := (&Client{nc: newTape(h2.out, 9)}).option(optGo, nil, func(uint32, []byte) error { return stop }); err != stop {
		t.Errorf("what the caller thinks of a reply: %v", err)
	}
}

func oneExport(t *testing.T, name string) *Server {
	t.Helper()
	s, err := NewServer(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Add(Export{Name: name, Device: memory(t, 1<<20)}); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestServerHaggles: a client that ends at any byte, or takes nothing any more at any
// moment, ends a negotiation with an error, whichever way in it had taken.
func TestServerHaggles(t *testing.T) {
	s := oneExport(t, "x")
	flags := []byte{0, 0, 0, flagFixedNewstyle | flagNoZeroes}
	skipped := binary.BigEndian.AppendUint32(option(77, nil)[:12], maxOptionData+1)
	for what, said := range map[string][]byte{
		"go": bytes.Join([][]byte{flags, option(optStructuredReply, nil), option(optList, nil), option(optSetMetaContext, metaData("x", allocationName)),
			append(skipped, make([]byte, maxOptionData+1)...), option(optGo, infoData("x", infoName, infoBlockSize))}, nil),
		"the old way": bytes.Join([][]byte{flags, option(optInfo, infoData("x")), option(optExportName, []byte("x"))}, nil),
	} {
		at := func(cut int) error {
			h, err := haggle(newTape(said[:cut], 99), s)
			if err == nil && h.x == nil {
				t.Errorf("%s, %d bytes: agreed on nothing", what, cut)
			}
			return err
		}
		for cut := 0; cut < len(said); cut++ {
			if cut == 300 && what == "go" {
				cut = len(said) - 300 // what is skipped is long
			}
			if at(cut) == nil {
				t.Errorf("%s: agreed after %d of %d bytes", what, cut, len(said))
			}
		}
		if err := at(len(said)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		writes := 0
		for ; ; writes++ {
			_, err := haggle(newTape(said, writes), s)
			if err == nil {
				break
			}
			if !errors.Is(err, errTape) {
				t.Fatalf("%s, %d writes: %v", what, writes, err)
			}
		}
		if want := map[string]int{"go": 6, "the old way": 3}[what]; writes != want {
			t.Errorf("%s: %d writes were needed, want %d", what, writes, want)
		}
	}
	if _, err := haggle(newTape(bytes.Join([][]byte{flags, option(optExportName, []byte("y"))}, nil), 99), s); err == nil {
		t.Error("the old way to an export that is not there")
	}
	many := append([]byte(nil), flags...)
	for range maxOptions - 1 {
		many = append(many, option(77, nil)...)
	}
	last := option(optGo, infoData("x"))
	if _, err := haggle(newTape(append(many, last...), 1<<20), s); err != nil {
		t.Errorf("as many options as may be: %v", err)
	}
	if _, err := haggle(newTape(append(append(many, option(77, nil)...), last...), 1<<20), s); !errors.Is(err, rdserr.ErrTooMany) {
		t.Errorf("one more: %v", err)
	}
}

// TestNetlinkCut: an attribute or a message that is cut anywhere is an error, never a
// number made of what stands behind it.
func TestNetlinkCut(t *testing.T) {
	m := &message{}
	m.u32(1, 0x01020304)
	m.str(2, "name")
	m.u64(3, 9)
	m.nest(4, func() { m.u32(5, 6) })
	m.attr(7, nil)
	if len(m.b) != 8+12+12+4+8+4 {
		t.Errorf("%d bytes: % x", len(m.b), m.b)
	}
	ends := map[int]int{0: 0, 8: 1, 20: 2, 32: 3, 44: 4, 48: 5}
	for cut := range len(m.b) + 1 {
		n := 0
		err := eachAttr(m.b[:cut], func(kind uint16, data []byte) error {
			n++
			if want := []uint16{1, 2, 3, 4, 7}[n-1]; kind != want || len(data) != []int{4, 5, 8, 8, 0}[n-1] {
				t.Errorf("attribute %d: kind %d with %d bytes", n, kind, len(data))
			}
			return nil
		})
		if want, whole := ends[cut]; whole && (err != nil || n != want) {
			t.Errorf("%d bytes: %d attributes, %v", cut, n, err)
		} else if !whole && cut != 17 && cut != 18 && cut != 19 && !errors.Is(err, rdserr.ErrProtocol) { // at the end padding may be left out
			t.Errorf("%d bytes: %d attributes, %v", cut, n, err)
		}
	}
	stop := errors.New("enough")
	if err := eachAttr(m.b, func(uint16, []byte) error { return stop }); err != stop {
		t.Errorf("the caller had enough: %v", err)
	}
	for n := range 6 {
		v, err := getU32([]byte{4, 3, 2, 1, 9}[:n])
		if (err == nil) != (n >= 4) || n >= 4 && v != native.Uint32([]byte{4, 3, 2, 1}) {
			t.Errorf("a number of %d bytes: %d, %v", n, v, err)
		}
	}
	message := func(kind uint16, seq uint32, body string) []byte {
		b := native.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(body)))
		b = native.AppendUint16(native.AppendUint16(b, kind), 0)
		return append(native.AppendUint32(native.AppendUint32(b, seq), 0), body...)
	}
	for what, c := range map[string]struct {
		b    []byte
		done bool
		err  error
		n    int
	}{
		"nothing":                    {nil, false, nil, 0},
		"half a header":              {message(42, 2, "")[:15], false, nil, 0},
		"an answer of nothing":       {message(42, 2, "gene"), false, nil, 1},
		"half a generic header":      {message(42, 2, "gen"), false, rdserr.ErrProtocol, 0},
		"the least kind":             {message(unix.NLMSG_MIN_TYPE, 2, "gene"), false, nil, 1},
		"a kind below":               {message(unix.NLMSG_MIN_TYPE-1, 2, "gene"), false, nil, 0},
		"the end of a dump":          {message(unix.NLMSG_DONE, 2, ""), true, nil, 0},
		"another's":                  {message(unix.NLMSG_DONE, 3, ""), false, nil, 0},
		"an acknowledgement":         {message(unix.NLMSG_ERROR, 2, "\x00\x00\x00\x00"), true, nil, 0},
		"half of one":                {message(unix.NLMSG_ERROR, 2, "\x00\x00\x00"), false, rdserr.ErrProtocol, 0},
		"a refusal":                  {message(unix.NLMSG_ERROR, 2, string(native.AppendUint32(nil, uint32(0xffffffff)))), true, unix.EPERM, 0},
		"longer than its datagram":   {message(42, 2, "generic")[:22], false, rdserr.ErrProtocol, 0},
		"shorter than its header is": {native.AppendUint32(nil, 15), false, nil, 0},
	} {
		var got [][]byte
		done, err := parseAnswers(c.b, 2, &got)
		if done != c.done || !errors.Is(err, c.err) || c.err == nil && err != nil || len(got) != c.n {
			t.Errorf("%s: done %v, %v, %d answers", what, done, err, len(got))
		}
	}
	short := message(42, 2, "gene")
	native.PutUint32(short, 15)
	if _, err := parseAnswers(short, 2, new([][]byte)); !errors.Is(err, rdserr.ErrProtocol) {
		t.Errorf("a message of 15 bytes: %v", err)
	}
}

// TestReplyHeaders: each sort of reply says how long it is, to whom, and what is behind it.
func TestReplyHeaders(t *testing.T) {
	bad := fmt.Errorf("%s: %w", strings.Repeat("x", 300), blk.ErrMedium)
	for what, c := range map[string]struct {
		o          op
		structured bool
		want       []byte
	}{
		"simple":             {op{cookie: 7}, false, simpleReply(0, 7)},
		"simple data":        {op{cookie: 7, data: []byte("abc")}, false, simpleReply(0, 7)},
		"a simple error":     {op{cookie: 7, err: blk.ErrMedium}, false, simpleReply(errIO, 7)},
		"a success is short": {op{cookie: 7}, true, simpleReply(0, 7)},
		"data":               {op{cookie: 7, cmd: cmdRead, data: []byte("abc"), req: blk.Request{Off: 512}}, true, chunk(1, replyOffsetData, 7, u64(512), []byte("abc"))[:28]},
		"no data":            {op{cookie: 7, cmd: cmdRead, data: []byte{}, req: blk.Request{Off: 512}}, true, chunk(1, replyOffsetData, 7, u64(512))},
		"extents":            {op{cookie: 7, cmd: cmdBlockStatus, data: []byte("abcd")}, true, chunk(1, replyBlockStatus, 7, []byte("abcd"))[:20]},
		"an error":           {op{cookie: 7, err: rdserr.With(blk.ErrMedium, "why")}, true, chunk(1, replyError, 7, u32(errIO), u16(3), []byte("why"))},
		"a long one":         {op{cookie: 7, err: bad}, true, chunk(1, replyError, 7, u32(errIO), u16(200), []byte(strings.Repeat("x", 200)))},
	} {
		if got := c.o.header([]byte("before"), c.structured); !bytes.Equal(got, append([]byte("before"), c.want...)) || len(got) > 6+maxHeader {
			t.Errorf("%s:\n% x, want\n% x", what, got[6:], c.want)
		}
	}
}

// TestOpLists: what is put into a queue comes out in order, also what another one held.
func TestOpLists(t *testing.T) {
	var a, b opList
	if a.pop() != nil {
		t.Error("something out of nothing")
	}
	a.append(&b)
	ops := make([]op, 6)
	for i := range ops {
		ops[i].cookie = uint64(i)
		if i < 3 {
			a.push(&ops[i])
		} else {
			b.push(&ops[i])
		}
	}
	var c opList
	c.append(&a) // to an empty one
	c.append(&b)
	c.append(&b)
	if a != (opList{}) || b != (opList{}) {
		t.Error("what was moved is there still")
	}
	for i := range ops {
		if o := c.pop(); o != &ops[i] || o.next != nil {
			t.Fatalf("operation %d is %+v", i, o)
		}
	}
	if c != (opList{}) || c.pop() != nil {
		t.Errorf("left: %+v", c)
	}
	c.push(&ops[1])
	if c.pop() != &ops[1] || c != (opList{}) {
		t.Error("a queue that was empty")
	}
}

// TestShareOfAConnection: as many requests and as much memory as it may have, to the last
// byte; one request always goes.
func TestShareOfAConnection(t *testing.T) {
	c := &conn{srv: &Server{opts: Options{MaxRequests: 3, MaxBytes: 1000}}}
	c.room.L = &c.mu
	a := c.takeOp(5000) // alone, whatever it needs
	if a == nil || c.takeOp(0) != nil {
		t.Fatal("one that is too large goes alone")
	}
	c.release(a)
	a, b := c.takeOp(600), c.takeOp(400)
	if a == nil || b == nil || c.takeOp(1) != nil {
		t.Fatal("the whole share, and a byte more")
	}
	if c.bytes != 1000 || c.inFlight != 2 {
		t.Errorf("%d bytes of %d requests", c.bytes, c.inFlight)
	}
	d := c.takeOp(0)
	if d == nil || d == a || d == b {
		t.Fatal("a request without memory")
	}
	c.release(b)
	if e := c.takeOp(400); e != b { // the latest used
		t.Errorf("%p is used again, not %p", e, b)
	}
	if c.takeOp(0) != nil {
		t.Error("a fourth of three requests")
	}
	for _, o := range []*op{a, b, d} {
		c.release(o)
	}
	if c.bytes != 0 || c.inFlight != 0 || c.made != 3 {
		t.Errorf("%d bytes of %d requests are left, %d were made", c.bytes, c.inFlight, c.made)
	}
}
