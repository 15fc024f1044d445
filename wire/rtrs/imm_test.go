package rtrs_test

import (
	"errors"
	"math/rand"
	"testing"

	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// ceilLog2 by the book.
func ceilLog2(n uint32) (l int) {
	for uint64(1)<<l < uint64(n) {
		l++
	}
	return l
}

// TestReqImm: every queue depth, with the largest chunks that go with it;
// the first and the last chunk and byte, and some between.
func TestReqImm(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	for depth := uint32(1); depth <= rtrswire.MaxDepth; depth++ {
		bits := 28 - ceilLog2(depth)
		size := uint32(1) << bits
		c, err := rtrswire.NewChunks(depth, size-4096, 4096)
		if depth > 1<<15 { // a chunk of at most 4096: all of it must not be headers
			c, err = rtrswire.NewChunks(depth, size-64, 64)
		}
		if err != nil {
			t.Fatal(depth, err)
		}
		if c.MemBits() != bits || c.Size() != size {
			t.Fatalf("depth %d: %d bits, chunks of %d; want %d, %d", depth, c.MemBits(), c.Size(), bits, size)
		}
		for _, mem := range []uint32{0, depth - 1, rng.Uint32() % depth} {
			for _, off := range []uint32{0, size - 1, rng.Uint32() % size} {
				i := c.Req(mem, off)
				if uint32(i) != mem<<bits+off {
					t.Fatalf("depth %d, chunk %d byte %d: %#x", depth, mem, off, uint32(i))
				}
				if m, o, err := c.ParseReq(i); m != mem || o != off || err != nil {
					t.Fatalf("depth %d, chunk %d byte %d came back as %d, %d, %v", depth, mem, off, m, o, err)
				}
			}
		}
		if depth&(depth-1) != 0 { // there are numbers beyond the last chunk
			if _, _, err := c.ParseReq(rtrswire.Imm(depth << bits)); err != rtrswire.ErrMemID {
				t.Fatalf("depth %d, chunk %d: %v", depth, depth, err)
			}
		}
		if _, err := rtrswire.NewChunks(depth, size-64+1, 64); !errors.Is(err, rtrswire.ErrChunks) {
			t.Fatalf("depth %d, chunks of %d: %v", depth, size+1, err)
		}
	}
}

// TestDone: every status and every answer's number.
func TestDone(t *testing.T) {
	check := func(msg uint32, errno uint16, inv bool) {
		t.Helper()
		i, typ := rtrswire.Done(msg, errno, inv), rtrswire.IORsp
		if inv {
			typ = rtrswire.IORspInv
		}
		if m, e, v := i.Done(); m != msg || e != errno || v != inv || i.Type() != typ {
			t.Fatalf("message %d errno %d revoked %v came back as %d, %d, %v of type %d", msg, errno, inv, m, e, v, i.Type())
		}
	}
	for errno := range uint16(rtrswire.MaxErrno + 1) {
		check(0, errno, true)
		check(1<<19-1, errno, false)
	}
	for msg := range uint32(1 << 19) {
		check(msg, uint16(msg%512), msg&1 == 0)
	}
	for _, errno := range []uint16{512, 524, 1024, 65535} { // 512 & 0x1ff would be success
		if _, e, _ := rtrswire.Done(1, errno, false).Done(); e != 5 {
			t.Errorf("errno %d is sent as %d", errno, e)
		}
	}
	if i := rtrswire.Done(0, 22, true); uint32(i) != 0x20b00000 {
		t.Errorf("EINVAL of chunk 0: %#x", uint32(i))
	}
}

// TestImmOfOtherTypes: only IO_REQ is a request.
func TestImmOfOtherTypes(t *testing.T) {
	c, err := rtrswire.NewChunks(512, 126976, 4096)
	if err != nil {
		t.Fatal(err)
	}
	for typ := range uint32(16) {
		i := rtrswire.Imm(typ<<28 | 8)
		if _, _, err := c.ParseReq(i); (err == nil) != (typ == 0) || uint32(i.Type()) != typ {
			t.Errorf("type %d: %v", typ, err)
		}
	}
	if _, err := rtrswire.ParseImm(make([]byte, 3)); err != rtrswire.ErrShort {
		t.Error(err)
	}
}

// TestChunksRefused: what a CON_RSP may not announce.
func TestChunksRefused(t *testing.T) {
	for _, c := range []struct {
		what              string
		depth, maxIO, hdr uint32
	}{
		{"no chunks", 0, 4096, 4096},
		{"too many", 65536, 64, 64},
		{"no data", 512, 0, 4096},
		{"no room for a message", 512, 4096, 23},
		{"a sum that wraps", 1, 0xffffffff, 4097},
		{"too large for the depth", 2049, 126976, 4096},
	} {
		if _, err := rtrswire.NewChunks(c.depth, c.maxIO, c.hdr); !errors.Is(err, rtrswire.ErrChunks) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	if _, err := rtrswire.NewChunks(2048, 126976, 4096); err != nil {
		t.Error(err)
	}
}

// TestBrokenInvariants: numbers that no caller of ours may pass would read
// as others on the wire.
func TestBrokenInvariants(t *testing.T) {
	c, _ := rtrswire.NewChunks(3, 4096, 4096)
	for what, f := range map[string]func(){
		"chunk beyond the depth":   func() { c.Req(3, 0) },
		"byte beyond the chunk":    func() { c.Req(0, 8192) },
		"answer beyond 19 bits":    func() { rtrswire.Done(1<<19, 0, false) },
		"rejection without reason": func() { rtrswire.Reject(0) },
		"rejection beyond 15 bits": func() { rtrswire.Reject(1 << 15) },
		"request of another type":  func() { (&rtrswire.Req{}).Append(nil) },
		"two descriptors":          func() { (&rtrswire.Req{Type: rtrswire.Read, SGCnt: 2}).Append(nil) },
		"65536 descriptors":        func() { rtrswire.AppendInfoRsp(nil, make([]rtrswire.Desc, 65536)) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error(what, "did not panic")
				}
			}()
			f()
		}()
	}
}

// TestChunksLeast: a chunk holds a byte of data and one descriptor's headers at least.
func TestChunksLeast(t *testing.T) {
	const hdr = rtrswire.ReadLen + rtrswire.DescLen
	for _, c := range []struct {
		io, hdr uint32
		ok      bool
	}{{1, hdr, true}, {0, hdr, false}, {1, hdr - 1, false}, {1, hdr + 1, true}} {
		if _, err := rtrswire.NewChunks(8, c.io, c.hdr); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestNames(t *testing.T) {
	for _, c := range [][2]string{
		{rtrswire.Type(5).String(), "unknown"},
		{rtrswire.RKeyRspType.String(), "rkey-rsp"},
		{rtrswire.ImmHeartbeat.String(), "heartbeat"},
		{rtrswire.ImmHeartbeatAck.String(), "heartbeat-ack"},
		{rtrswire.Done(3, 2, false).String(), "io-rsp msg=3 errno=2"},
		{rtrswire.Done(3, 0, true).String(), "io-rsp-inv msg=3 errno=0"},
		{rtrswire.Imm(0x801020).String(), "io-req 0x0801020"},
		{rtrswire.Imm(0x70000001).String(), "unknown 7 0x0000001"},
	} {
		if c[0] != c[1] {
			t.Errorf("%q, want %q", c[0], c[1])
		}
	}
}
