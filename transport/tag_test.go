package transport

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"strings"
	"testing"
)

// TestTagLayout: the bytes of docs/protocol.md.
func TestTagLayout(t *testing.T) {
	for _, c := range []struct {
		name string
		tag  Tag
		hex  string
	}{
		{"write with immediate", Tag{Kind: OpWriteImm, Seq: 1, Len: 4096, Key: 0x11223344, Imm: 0x80000001, Addr: 0x0102030405060000},
			"c50caa78" + "02000000" + "01000000" + "00100000" + "44332211" + "01000080" + "0000060504030201"},
		{"accept", Tag{Kind: TagAccept, Len: 56, Key: TagVersion, Addr: tagMagic},
			"da8d4baa" + "11000000" + "00000000" + "38000000" + "01000000" + "00000000" + hex.EncodeToString([]byte("rdsd-tag"))},
	} {
		want, _ := hex.DecodeString(c.hex)
		var b [TagLen]byte
		c.tag.Put(b[:])
		if !bytes.Equal(b[:], want) {
			t.Errorf("%s: %x, not %x", c.name, b, want)
		}
		var back Tag
		if err := back.Parse(want, c.tag.Seq); err != nil || back != c.tag {
			t.Errorf("%s: parsed %+v, %v", c.name, back, err)
		}
	}
}

func TestTagRefused(t *testing.T) {
	good := Tag{Kind: OpSend, Seq: 7, Len: 10}
	sum := func(b []byte) { binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:TagLen], castagnoli)) }
	for _, c := range []struct {
		why  string
		tag  Tag
		edit func(b []byte)
	}{
		{"checksum", good, func(b []byte) { b[30] ^= 1 }},
		{"checksum", good, func(b []byte) { b[0] ^= 1 }},
		{"number 6 of its link, and 7 is due", Tag{Kind: OpSend, Seq: 6}, nil},
		{"kind 0", Tag{Seq: 7}, nil},
		{"kind 6", Tag{Kind: OpSendInval + 1, Seq: 7}, nil},
		{"kind 257", good, func(b []byte) { b[4], b[5] = 1, 1; sum(b) }}, // the bytes above are not ignored
		{"at most 65536", Tag{Kind: OpSend, Seq: 7, Len: MaxSend + 1}, nil},
		{"at most 65536", Tag{Kind: OpSendInval, Seq: 7, Len: 1 << 31}, nil},
		{"at most 56", Tag{Kind: TagConnect, Seq: 7, Len: MaxConnect + 1, Addr: tagMagic}, nil},
		{"at most 196", Tag{Kind: TagAccept, Seq: 7, Len: MaxAccept + 1, Addr: tagMagic}, nil},
		{"at most 148", Tag{Kind: TagReject, Seq: 7, Len: MaxReject + 1, Addr: tagMagic}, nil},
		{"magic", Tag{Kind: TagReject, Seq: 7}, nil},
	} {
		var b [TagLen]byte
		c.tag.Put(b[:])
		if c.edit != nil {
			c.edit(b[:])
		}
		var back Tag
		err := back.Parse(b[:], 7)
		if bad := (*TagError)(nil); !errors.As(err, &bad) || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%+v: %v; %q should be said", c.tag, err, c.why)
		}
	}
	for kind, most := range map[OpKind]int{TagConnect: MaxConnect, TagAccept: MaxAccept, TagReject: MaxReject} {
		if _, err := AppendHandshake(nil, kind, make([]byte, most+1)); err == nil {
			t.Errorf("a handshake of kind %d with too much private data", kind)
		}
		b, err := AppendHandshake(nil, kind, make([]byte, most))
		if err != nil {
			t.Errorf("a handshake of kind %d with %d bytes of private data: %v", kind, most, err)
		} else if err := new(Tag).Parse(b, 0); err != nil {
			t.Errorf("its header: %v", err)
		}
	}
}

func TestRegionsGrowAndShrink(t *testing.T) {
	d := NewRegions([32]byte{1})
	type held struct {
		key  uint32
		addr uint64
		mem  []byte
	}
	var live []held
	d.count = ^uint32(0) - 500 // the counter passes 0 with keys live
	for round := range 3 {
		for range 3000 {
			mem := make([]byte, 16)
			key, addr := d.Register(mem)
			live = append(live, held{key, addr, mem})
		}
		for i, h := range live {
			tag := Tag{Kind: OpWrite, Key: h.key, Addr: h.addr + 4, Len: 12}
			r, dst, err := d.begin(&tag)
			if err != nil || &dst[0] != &h.mem[4] || len(dst) != 12 {
				t.Fatalf("round %d: key %d: %v", round, i, err)
			}
			r.end()
		}
		for _, h := range live {
			if d.Revoke(h.key) != Idle {
				t.Fatal("busy")
			}
		}
		live = live[:0]
	}
	if d.live != 0 || len(d.table) > 8192 {
		t.Errorf("%d live, a table of %d", d.live, len(d.table))
	}
	for c := range uint32(1 << 16) {
		if x := c * 0x10001; d.counted(d.key(x)) != x {
			t.Fatalf("count %#x is not what its key says", x)
		}
	}
}

// TestSendBeyondTheExpected: a send that is longer than its receiver expects ends the link with its
// header, before there is memory for it.
func TestSendBeyondTheExpected(t *testing.T) {
	for _, kind := range []OpKind{OpSend, OpSendImm, OpSendInval} {
		for _, most := range []int{0, 8, MaxSend} {
			d := NewRegions([32]byte{3})
			key, _ := d.Register(make([]byte, 100))
			r := NewTagReader(d, 1, new(SentCount))
			r.Start(&tagLog{})
			r.Expect(most)
			b := make([]byte, TagLen+most)
			(&Tag{Kind: kind, Seq: 1, Key: key, Len: uint32(most)}).Put(b)
			if err := r.Feed(b); err != nil {
				t.Fatalf("%v of %d bytes where so many are expected: %v", kind, most, err)
			}
			if most == MaxSend {
				continue
			}
			(&Tag{Kind: kind, Seq: 2, Key: key, Len: uint32(most) + 1}).Put(b[:TagLen])
			if err := r.Feed(b[:TagLen]); !errors.As(err, new(*TagError)) || r.Partial() {
				t.Errorf("%v of a byte more than %d: %v, memory for it: %v", kind, most, err, r.Partial())
			}
			r.Close()
		}
	}
}

func TestRevokeWhileBusy(t *testing.T) {
	d := NewRegions([32]byte{2})
	mem := make([]byte, 100)
	key, addr := d.Register(mem)
	h := &tagLog{}
	r := NewTagReader(d, 1, new(SentCount))
	r.Start(h)
	feed := func(tag Tag, payload int) error {
		b := make([]byte, TagLen+payload)
		tag.Put(b)
		return r.Feed(b)
	}
	if err := feed(Tag{Kind: OpWriteImm, Seq: 1, Key: key, Addr: addr, Len: 100}, 40); err != nil {
		t.Fatal(err)
	}
	// The peer revokes over another link what it writes over this one.
	r2 := NewTagReader(d, 1, new(SentCount))
	r2.Start(h)
	b := make([]byte, TagLen)
	(&Tag{Kind: OpSendInval, Seq: 1, Key: key}).Put(b)
	if err := r2.Feed(b); !errors.As(err, new(*AccessError)) {
		t.Errorf("revoked by the peer while it writes: %v", err)
	}
	if d.Revoke(key) == Idle {
		t.Error("a key is idle while a write is under way")
	}
	other, _ := d.Register(make([]byte, 100)) // must not be what the write goes on in
	if _, err := r.Want(); !errors.As(err, new(*AccessError)) {
		t.Errorf("a write goes on after its key was revoked: %v", err)
	}
	if err := r.Feed(make([]byte, 60)); !errors.As(err, new(*AccessError)) {
		t.Errorf("a write goes on after its key was revoked: %v", err)
	}
	r.Close()
	if len(h.calls) > 0 || d.Revoke(other) != Idle || d.Revoke(key) != Idle {
		t.Errorf("calls %v", h.calls)
	}
}

// TestGuardRefusesWrite holds that the guard is asked for each write, about exactly the memory that the write is for, before a byte of it is
// placed; what it refuses is not written, ends the link with the guard's own error, and leaves the key idle.
func TestGuardRefusesWrite(t *testing.T) {
	d := NewRegions([32]byte{4})
	mem := make([]byte, 100)
	key, addr := d.Register(mem)
	full := errors.New("no memory for what a peer writes")
	var verdict error
	var asked [][]byte
	d.Guard(func(p []byte) error {
		asked = append(asked, p)
		if !bytes.Equal(mem, make([]byte, len(mem))) {
			t.Error("a byte was placed before the guard was asked")
		}
		return verdict
	})
	write := []byte("0123456789")
	frame := func(seq uint32) []byte {
		b := make([]byte, TagLen, TagLen+len(write))
		(&Tag{Kind: OpWriteImm, Seq: seq, Key: key, Addr: addr + 20, Len: uint32(len(write))}).Put(b)
		return append(b, write...)
	}

	for _, cut := range []int{TagLen, TagLen + 4, TagLen + len(write)} {
		h := &tagLog{}
		r := NewTagReader(d, 1, new(SentCount))
		r.Start(h)
		verdict, asked = full, nil
		err := r.Feed(frame(1)[:cut])
		if !errors.Is(err, full) || len(h.calls) > 0 || r.Partial() {
			t.Errorf("the first %d bytes of a write that is refused: %v, calls %v, part of it held: %v", cut, err, h.calls, r.Partial())
		}
		if len(asked) != 1 || len(asked[0]) != len(write) || &asked[0][0] != &mem[20] {
			t.Errorf("the guard was asked %d times", len(asked))
		}
		if n := d.find(key).busy.Load(); n != 0 || !bytes.Equal(mem, make([]byte, len(mem))) {
			t.Errorf("after a write that is refused %d are under way; the memory is %x", n, mem)
		}
		r.EndTurn()
		r.Close()
	}

	h := &tagLog{}
	r := NewTagReader(d, 1, new(SentCount))
	r.Start(h)
	verdict, asked = nil, nil
	if err := r.Feed(frame(1)); err != nil || len(asked) != 1 || len(h.calls) != 1 || string(mem[20:30]) != string(write) {
		t.Errorf("a write that is allowed: %v, asked %d times, calls %v, the memory is %x", err, len(asked), h.calls, mem)
	}
	r.EndTurn()
	r.Close()
	if d.Revoke(key) != Idle {
		t.Error("the key is busy at the end")
	}
}

// TestFilledWithoutGap holds what an owner is told of how much of its memory was written: the bytes from the first one on, without a gap,
// however often one of them came, and nothing of what is behind a gap.
func TestFilledWithoutGap(t *testing.T) {
	for _, c := range []struct {
		name   string
		writes [][2]int // from, to
		filled int
	}{
		{"nothing", nil, 0},
		{"all at once", [][2]int{{0, 100}}, 100},
		{"in turn", [][2]int{{0, 10}, {10, 11}, {11, 100}}, 100},
		{"not from the first byte on", [][2]int{{1, 100}}, 0},
		{"a gap of a byte", [][2]int{{0, 10}, {11, 100}}, 10},
		{"one part twice", [][2]int{{0, 50}, {0, 50}}, 50},
		{"a part of a part", [][2]int{{0, 50}, {10, 20}}, 50},
		{"a part with its end once more", [][2]int{{0, 50}, {40, 60}}, 60},
	} {
		d := NewRegions([32]byte{5})
		key, addr := d.Register(make([]byte, 100))
		r := NewTagReader(d, 1, new(SentCount))
		r.Start(&tagLog{})
		for i, w := range c.writes {
			b := make([]byte, TagLen+w[1]-w[0])
			(&Tag{Kind: OpWrite, Seq: uint32(1 + i), Key: key, Addr: addr + uint64(w[0]), Len: uint32(w[1] - w[0])}).Put(b)
			if err := r.Feed(b); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
		}
		if filled, how := d.Take(key); filled != c.filled || how != Idle {
			t.Errorf("%s: %d bytes are filled, %v; want %d", c.name, filled, how, c.filled)
		}
	}
}

// TestRestsOnlyWhenAsked holds that a domain's links rest when its owner says so, and never without an owner who could.
func TestRestsOnlyWhenAsked(t *testing.T) {
	d := NewRegions([32]byte{6})
	r := NewTagReader(d, 1, new(SentCount))
	if r.Deferred() {
		t.Error("it rests although nobody asked for that")
	}
	rest := true
	d.DeferReads(func() bool { return rest })
	if !r.Deferred() {
		t.Error("it does not rest")
	}
	if rest = false; r.Deferred() {
		t.Error("it still rests")
	}
}

// TestHandlerEndsStream holds that a handler's error ends the stream wherever the last byte of a frame comes from, and that nothing behind
// that frame is handled.
func TestHandlerEndsStream(t *testing.T) {
	b := make([]byte, TagLen+10)
	(&Tag{Kind: OpSend, Seq: 1, Len: 10}).Put(b)
	stream := make([]byte, TagLen)
	(&Tag{Kind: OpSend, Seq: 2}).Put(stream)
	stream = append(b, stream...)
	for _, cut := range []int{0, 5, TagLen, TagLen + 4} {
		h := &tagLog{err: errors.New("enough")}
		r := NewTagReader(NewRegions([32]byte{7}), 1, new(SentCount))
		r.Start(h)
		if err := r.Feed(stream[:cut]); err != nil {
			t.Fatalf("the first %d bytes: %v", cut, err)
		}
		if err := r.Feed(stream[cut:]); !errors.Is(err, h.err) || len(h.calls) != 1 {
			t.Errorf("cut at %d: %v, calls %v", cut, err, h.calls)
		}
		r.EndTurn()
		r.Close()
	}
}

// tagLog is a handler that notes its calls.
type tagLog struct {
	calls []string
	data  []byte
	err   error
	in    bool
	sent  int
}

func (h *tagLog) call(s string) error {
	if !h.in {
		panic("outside of Begin and End")
	}
	h.calls = append(h.calls, s)
	return h.err
}
func (h *tagLog) Begin() { h.in = true }
func (h *tagLog) End()   { h.in = false }
func (h *tagLog) Sent(n int) {
	if !h.in || n <= 0 {
		panic("outside of Begin and End, or of nothing")
	}
	h.sent += n
}
func (h *tagLog) Written(Placed) error { return h.call("written") }
func (h *tagLog) Received(data []byte, imm uint32, hasImm bool) error {
	h.data = append(h.data, data...)
	return h.call("received")
}
func (h *tagLog) Invalidated(key uint32, _ int) error { return h.call("invalidated") }
func (h *tagLog) Revoked(uint32, int) error           { panic("no revocation is pending over a byte stream") }
func (h *tagLog) Closed(err error)                    {}

// TestTagQueueBlocks: what is posted while a block is being written comes
// behind it, and everything is one stream.
func TestTagQueueBlocks(t *testing.T) {
	q := NewTagQueue(1)
	var want, got []byte
	seq := uint32(1)
	post := func(n, tail int) {
		op := Op{Kind: OpSendImm, Imm: seq, Data: bytes.Repeat([]byte{byte(seq)}, n), Tail: bytes.Repeat([]byte{byte(n)}, tail)}
		if err := q.Post(&op); err != nil {
			t.Fatal(err)
		}
		var h [TagLen]byte
		(&Tag{Kind: op.Kind, Seq: seq, Len: uint32(n + tail), Imm: seq}).Put(h[:])
		want = append(append(append(want, h[:]...), op.Data...), op.Tail...)
		clear(op.Tail) // it was copied
		seq++
	}
	write := func(most int) bool { // part of the first block
		b := q.Next()
		if b == nil {
			return false
		}
		if len(b.Pieces) > tagPieces || cap(b.stage) != tagStage {
			t.Fatalf("a block of %d pieces and room for %d bytes", len(b.Pieces), cap(b.stage))
		}
		n := 0
		for _, p := range b.Pieces {
			if len(p) == 0 {
				t.Fatal("an empty piece")
			}
			k := min(most-n, len(p))
			got = append(got, p[:k]...)
			n += k
		}
		if b.Wrote(n) {
			q.Done()
		}
		return true
	}
	for i := range 2000 {
		post([]int{0, 1, tagInline, tagInline + 1, 4096}[i%5], []int{0, 512, 7}[i%3])
		if i%3 == 0 {
			write(i % 5000)
		}
	}
	for range 2 * tagPieces { // each of them is two pieces
		post(tagInline+1, 7)
	}
	if q.Ops() == 0 {
		t.Error("nothing is left to write")
	}
	for write(1 << 30) {
	}
	if q.Ops() != 0 || !bytes.Equal(got, want) {
		t.Errorf("%d left; %d bytes written, %d posted", q.Ops(), len(got), len(want))
	}
	post(1, 1)
	q.Drop()
	if q.Ops() != 0 || q.Next() != nil {
		t.Error("something is left after Drop")
	}
}

// TestTagBlocksAreFilled: a block takes frames to its last byte and to its last piece but
// one, which the end of a block needs; the next frame begins another.
func TestTagBlocksAreFilled(t *testing.T) {
	one := func(q *TagQueue, n, tail int) *TagBlock {
		t.Helper()
		if err := q.Post(&Op{Kind: OpSend, Data: make([]byte, n), Tail: make([]byte, tail)}); err != nil {
			t.Fatal(err)
		}
		return q.last
	}
	q := NewTagQueue(1)
	first := one(&q, 0, 0)
	for left := tagStage - TagLen; left > 0; {
		n := min(left-TagLen, tagInline)
		if rest := left - TagLen - n; rest > 0 && rest < TagLen { // a frame is no shorter than its header
			n -= TagLen
		}
		if one(&q, n, 0) != first {
			t.Fatalf("another block was begun with %d bytes of %d left", left, tagStage)
		}
		left -= TagLen + n
	}
	if len(first.stage) != tagStage {
		t.Errorf("a block holds %d bytes of %d", len(first.stage), tagStage)
	}
	if one(&q, 0, 0) == first {
		t.Error("a full block takes a frame")
	}
	q.Drop()

	q = NewTagQueue(1)
	first = one(&q, tagInline+1, 1) // two pieces: what was copied, and the data
	for one(&q, tagInline+1, 1) == first {
	}
	first.seal()
	if n := len(first.all); n > tagPieces || n < tagPieces-2 {
		t.Errorf("a block ends with %d pieces of %d", n, tagPieces)
	}
	q.Drop()
}

// TestTagReadsWithoutCopy: a large payload is asked for in its place, whatever
// came before it.
func TestTagReadsWithoutCopy(t *testing.T) {
	d := NewRegions([32]byte{3})
	mem := make([]byte, 1<<20)
	key, addr := d.Register(mem)
	h := &tagLog{}
	r := NewTagReader(d, 1, new(SentCount))
	r.Start(h)
	if n := r.Ahead(64 << 10); n != 64<<10 {
		t.Errorf("%d bytes ahead before anything has come", n)
	}
	b := make([]byte, TagLen+10)
	(&Tag{Kind: OpWriteImm, Seq: 1, Key: key, Addr: addr, Len: 1 << 20}).Put(b)
	copy(b[TagLen:], "0123456789")
	if err := r.Feed(b); err != nil {
		t.Fatal(err)
	}
	want, err := r.Want()
	if err != nil || len(want) != 1<<20-10 || &want[0] != &mem[10] || string(mem[:10]) != "0123456789" {
		t.Fatalf("%d bytes wanted elsewhere, %v", len(want), err)
	}
	if n := r.Ahead(64 << 10); n > aheadLen {
		t.Errorf("%d bytes ahead of a large payload", n)
	}
	if err := r.Filled(len(want)); err != nil || len(h.calls) != 1 {
		t.Errorf("%v, calls %v", err, h.calls)
	}
	r.EndTurn()
	for i := range uint32(largeRun) { // small ones in a row: large ones are not expected any more
		(&Tag{Kind: OpSend, Seq: 2 + i}).Put(b)
		if err := r.Feed(b[:TagLen]); err != nil {
			t.Fatal(err)
		}
	}
	if n := r.Ahead(64 << 10); n != 64<<10 {
		t.Errorf("%d bytes ahead of small ones", n)
	}
}
