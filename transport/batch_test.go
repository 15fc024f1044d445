package transport

import (
	"bytes"
	"math/rand"
	"testing"

	"github.com/rdsd/rdsd/wire"
)

func TestBatchInlineLen(t *testing.T) {
	if wire.HeaderLen != 48 {
		t.Fatal("batch.go counts on 48-byte headers")
	}
}

// fill puts a frame with a header that counts up and returns its bytes.
func fill(b *Batch, i int, payload []byte) []byte {
	h := wire.Header{Seq: uint64(i), Len: uint32(len(payload)), SPort: 5, DPort: 6}
	h.Put(b.Frame(payload))
	return append(h.Append(nil), payload...)
}

// TestBatchBytes: whatever sizes go in, the pieces are the frames in order,
// also when they are written a few bytes at a time.
func TestBatchBytes(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	sizes := []int{0, 1, 47, 48, 64, InlineBytes - 1, InlineBytes, InlineBytes + 1, 8 << 10, 64 << 10, wire.MaxDatagram}
	b := GetBatch()
	defer b.Put()
	for round := range 200 {
		b.Reset()
		var want []byte
		frames := 0
		for {
			n := sizes[rng.Intn(len(sizes)-rng.Intn(len(sizes)))]
			if !b.Room(n) {
				break
			}
			p := make([]byte, n)
			rng.Read(p)
			want = append(want, fill(b, frames, p)...)
			frames++
		}
		b.Seal()
		if frames == 0 || b.Frames() != frames || b.Bytes != len(want) {
			t.Fatalf("round %d: %d frames of %d, %d bytes of %d", round, b.Frames(), frames, b.Bytes, len(want))
		}
		if len(b.Pieces) > BatchPieces {
			t.Fatalf("round %d: %d pieces", round, len(b.Pieces))
		}
		if frames > 1 && b.Bytes > BatchBytes {
			t.Fatalf("round %d: %d bytes", round, b.Bytes)
		}
		var got []byte
		for done := false; !done; {
			left := 0
			for _, p := range b.Pieces {
				left += len(p)
			}
			n := min(left, 1+rng.Intn(100<<10))
			for m, i := n, 0; m > 0; i++ {
				p := b.Pieces[i]
				k := min(m, len(p))
				got = append(got, p[:k]...)
				m -= k
			}
			if done = b.Wrote(n); done != (n == left) {
				t.Fatalf("round %d: done %v with %d of %d left", round, done, left-n, left)
			}
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("round %d: other bytes", round)
		}
	}
}

// TestBatchTakesOneOfAnySize: an empty batch has room for every frame.
func TestBatchTakesOneOfAnySize(t *testing.T) {
	b := GetBatch()
	defer b.Put()
	if !b.Room(wire.MaxDatagram) {
		t.Fatal("no room for the largest datagram")
	}
	p := make([]byte, wire.MaxDatagram)
	want := fill(b, 1, p)
	if b.Room(0) {
		t.Error("room behind the largest datagram")
	}
	b.Seal()
	if got := bytes.Join(b.Pieces, nil); !bytes.Equal(got, want) {
		t.Error("other bytes")
	}
}

// TestBatchWithoutRoom: a frame of the protocol's own may follow a batch that
// is full to the last byte.
func TestBatchWithoutRoom(t *testing.T) {
	b := GetBatch()
	defer b.Put()
	payload := bytes.Repeat([]byte{7}, 48) // 96 bytes a frame divide the stage evenly
	var want []byte
	n := 0
	for ; b.Room(len(payload)); n++ {
		want = append(want, fill(b, n, payload)...)
	}
	if len(b.stage) != cap(b.stage) {
		t.Fatalf("stage %d of %d: the test wants it full", len(b.stage), cap(b.stage))
	}
	for range 5 {
		want = append(want, fill(b, n, nil)...)
		n++
	}
	b.Seal()
	if b.Frames() != n || !bytes.Equal(bytes.Join(b.Pieces, nil), want) {
		t.Error("other frames")
	}
}

// TestBatchSpaceOfAnySize: payload that is written in place has as much room as it takes, and what
// comes behind it needs no memory of its own.
func TestBatchSpaceOfAnySize(t *testing.T) {
	for _, n := range []int{0, 1, stageBytes - 48, stageBytes - 47, 2 * stageBytes} {
		b := GetBatch()
		fill(b, 0, make([]byte, 48))
		for range 3 {
			raw, payload := b.Space(n)
			if len(raw) != 48 || len(payload) != n || cap(b.stage) < stageBytes {
				t.Fatalf("%d bytes of payload: %d of a header and %d, in a stage of %d", n, len(raw), len(payload), cap(b.stage))
			}
			payload = append(payload[:0], bytes.Repeat([]byte{9}, n)...)
			if n > 0 && payload[0] != 9 {
				t.Fatal("it cannot be written")
			}
		}
		b.Put()
	}
}

// TestBatchReferencesLargePayloads: they are not copied; small ones are.
func TestBatchReferencesLargePayloads(t *testing.T) {
	b := GetBatch()
	defer b.Put()
	small, large := make([]byte, InlineBytes), make([]byte, InlineBytes+1)
	fill(b, 1, small)
	fill(b, 2, large)
	b.Seal()
	small[0], large[0] = 1, 1
	got := bytes.Join(b.Pieces, nil)
	if got[48] != 0 {
		t.Error("a small payload is referenced")
	}
	if got[48+InlineBytes+48] != 1 {
		t.Error("a large payload is copied")
	}
}

func TestBatchDoesNotAllocate(t *testing.T) {
	b := GetBatch()
	defer b.Put()
	p := make([]byte, 64)
	h := wire.Header{}
	if n := testing.AllocsPerRun(100, func() {
		b.Reset()
		for b.Room(len(p)) {
			h.Put(b.Frame(p))
		}
		b.Seal()
		b.Wrote(b.Bytes)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestFrameWithoutRoom holds that the frames which end a batch without asking for room fit wherever the stage happens to be: what does not
// fit behind the last frame begins another stage, and the bytes stay the same.
func TestFrameWithoutRoom(t *testing.T) {
	last := bytes.Repeat([]byte{7}, InlineBytes)
	for _, left := range []int{0, 1, 47, 48, 49, 1000, InlineBytes, InlineBytes + 47, InlineBytes + 48, InlineBytes + 49} {
		b := GetBatch()
		var want []byte
		for i := 0; cap(b.stage)-len(b.stage) > left; i++ {
			room := cap(b.stage) - len(b.stage) - left
			n := min(room-48, InlineBytes)
			if rest := room - 48 - n; rest > 0 && rest < 48 {
				n -= 48 // or nothing would fit into what is left
			}
			want = append(want, fill(b, i, bytes.Repeat([]byte{byte(i)}, n))...)
		}
		if got := cap(b.stage) - len(b.stage); got != left {
			t.Fatalf("%d bytes of the stage are left, want %d", got, left)
		}
		for i := range 2 {
			want = append(want, fill(b, i, last)...)
		}
		b.Seal()
		if got := bytes.Join(b.Pieces, nil); !bytes.Equal(got, want) {
			t.Errorf("with %d bytes of the stage left the batch has %d bytes, and not those of its frames, which are %d", left, len(got), len(want))
		}
		b.Put()
	}
}

// TestLed: a frame of which a part is written in place and the rest copied, or referenced, stands
// where it was put, with and without room for it.
func TestLed(t *testing.T) {
	b := GetBatch()
	defer b.Put()
	var want []byte
	for i := 0; b.frames < 2*BatchPieces; i++ {
		n, payload := 4*(i%3000), bytes.Repeat([]byte{byte(i)}, []int{0, 7, InlineBytes, InlineBytes + 1, 5000}[i%5])
		fits := b.LedRoom(n, len(payload))
		stage, pieces := &b.stage[:1][0], len(b.all)
		raw, front := b.Led(n, payload)
		if within := stage == &b.stage[0] && b.Bytes <= BatchBytes && pieces+2 < BatchPieces; within != fits && i > 0 {
			t.Fatalf("frame %d: room %v, and it fits: %v", i, fits, within)
		}
		if len(raw) != 48 || len(front) != n {
			t.Fatalf("%d bytes of header and %d to write, want %d", len(raw), len(front), n)
		}
		for j := range raw {
			raw[j] = byte(i + 1)
		}
		for j := range front {
			front[j] = byte(i + 2)
		}
		want = append(append(append(want, raw...), front...), payload...)
		if b.Frames() != i+1 || b.Bytes != len(want) {
			t.Fatalf("%d frames of %d bytes, want %d of %d", b.Frames(), b.Bytes, i+1, len(want))
		}
	}
	b.Seal()
	if !bytes.Equal(bytes.Join(b.Pieces, nil), want) {
		t.Error("other bytes than were put")
	}
}
