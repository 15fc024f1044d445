package transport

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"runtime"
	"testing"

	"github.com/rdsd/rdsd/internal/buf"
	"github.com/rdsd/rdsd/wire"
)

// cut feeds stream to a fresh Framer in the chunks next asks for and returns
// the frames, one after the other with a mark between, and the error that ended it.
// direct: bytes of a large payload go where Want says.
func cut(t testing.TB, max int, stream []byte, next func() int, direct bool) (got []byte, err error) {
	f := Framer{Max: max}
	held := buf.InUse()
	sink := func(fr *Frame) error {
		if len(fr.Raw) != wire.HeaderLen || len(fr.Payload) != int(wire.PayloadLen(fr.Raw)) {
			t.Fatalf("%d bytes of header, %d of %d of payload", len(fr.Raw), len(fr.Payload), wire.PayloadLen(fr.Raw))
		}
		if fr.Buf != nil && len(fr.Payload) > 0 && &fr.Buf.B[0] != &fr.Payload[0] {
			t.Fatal("the payload does not lie in its buffer")
		}
		got = append(append(append(got, fr.Raw...), fr.Payload...), '|')
		return nil
	}
	for len(stream) > 0 && err == nil {
		n := min(max1(next()), len(stream))
		if w := f.Want; direct && w != nil {
			n = copy(w, stream[:n])
			err = f.Filled(n, sink)
		} else {
			var used int
			used, err = f.Feed(bytes.Clone(stream[:n]), sink)
			if err == nil && used != n {
				t.Fatalf("%d of %d bytes used without an error", used, n)
			}
		}
		stream = stream[n:]
		if in := buf.InUse() - held; in > int64(max)+64<<10*4 {
			t.Fatalf("%d bytes held", in)
		}
	}
	f.Close()
	if f.Partial() || buf.InUse() != held {
		t.Fatal("Close leaves something behind")
	}
	return got, err
}

func max1(n int) int { return max(n, 1) }

// chunkings returns ways to cut a stream, the first being "all at once".
func chunkings(rng *rand.Rand) []func() int {
	return []func() int{
		func() int { return 1 << 30 },
		func() int { return 1 + rng.Intn(7) },
		func() int { return 1 + rng.Intn(200) },
		func() int { return 1 + rng.Intn(64<<10) },
		func() int { return wire.HeaderLen },
		func() int { return wire.HeaderLen - 1 },
	}
}

// sameFrames is the property: the frames do not depend on the chunks.
func sameFrames(t testing.TB, max int, stream []byte, rng *rand.Rand) []byte {
	want, wantErr := cut(t, max, stream, chunkings(rng)[0], false)
	for i, next := range chunkings(rng) {
		for _, direct := range []bool{false, true} {
			got, err := cut(t, max, stream, next, direct)
			if !bytes.Equal(got, want) || fmt.Sprint(err) != fmt.Sprint(wantErr) {
				t.Fatalf("chunking %d, direct %v: %d bytes and %v instead of %d and %v", i, direct, len(got), err, len(want), wantErr)
			}
		}
	}
	return want
}

func TestFramerAnyChunks(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	sizes := []int{0, 0, 1, 47, 48, 49, 500, DirectLen - 1, DirectLen, DirectLen + 1, 50000}
	for range 20 {
		var stream, want []byte
		for i := range 1 + rng.Intn(12) {
			p := make([]byte, sizes[rng.Intn(len(sizes))])
			rng.Read(p)
			h := wire.Header{Seq: uint64(i), Len: uint32(len(p)), SPort: 1, DPort: 2}
			fr := append(h.Append(nil), p...)
			stream = append(stream, fr...)
			want = append(append(want, fr...), '|')
		}
		if got := sameFrames(t, wire.MaxDatagram, stream, rng); !bytes.Equal(got, want) {
			t.Fatal("other frames than were put in")
		}
	}
}

func TestFramerRefusesLength(t *testing.T) {
	for _, n := range []uint32{1001, 1 << 20, 1 << 31, 1<<32 - 1} {
		h := wire.Header{Len: n}
		good := wire.Header{Len: 3}
		stream := append(append(good.Append(nil), 1, 2, 3), h.Append(nil)...)
		stream = append(stream, make([]byte, 100)...)
		f := Framer{Max: 1000}
		frames := 0
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		used, err := f.Feed(stream, func(*Frame) error { frames++; return nil })
		runtime.ReadMemStats(&after)
		if e, ok := errors.AsType[*ErrTooLong](err); !ok || e.Len != n || e.Max != 1000 {
			t.Errorf("length %d: %v", n, err)
		}
		if frames != 1 || used != 2*wire.HeaderLen+3 {
			t.Errorf("length %d: %d frames, %d bytes used", n, frames, used)
		}
		if a := after.TotalAlloc - before.TotalAlloc; a > 64<<10 {
			t.Errorf("length %d: %d bytes allocated", n, a)
		}
	}
}

// TestFramerSinkFails: the frame counts as used, the rest does not, and the
// stream goes on from there.
func TestFramerSinkFails(t *testing.T) {
	stop := errors.New("stop")
	for _, n := range []int{0, 10, DirectLen, 3 * DirectLen} {
		for _, split := range []int{0, 20, wire.HeaderLen, wire.HeaderLen + n/2} {
			var stream []byte
			for i := range 3 {
				h := wire.Header{Seq: uint64(i), Len: uint32(n)}
				stream = append(h.Append(stream), bytes.Repeat([]byte{byte(i)}, n)...)
			}
			held := buf.InUse()
			f := Framer{Max: wire.MaxDatagram}
			seqs := ""
			sink := func(fr *Frame) error {
				var h wire.Header
				h.Parse(fr.Raw)
				seqs += fmt.Sprint(h.Seq)
				if h.Seq == 1 {
					return stop
				}
				return nil
			}
			f.Feed(stream[:split], sink)
			used, err := f.Feed(stream[split:], sink)
			if err != stop || split+used != 2*(wire.HeaderLen+n) {
				t.Fatalf("payload %d, split %d: %v, %d used", n, split, err, split+used)
			}
			if used, err = f.Feed(stream[split+used:], sink); err != nil || seqs != "012" {
				t.Fatalf("payload %d, split %d: %v, %d, frames %s", n, split, err, used, seqs)
			}
			if f.Partial() || buf.InUse() != held {
				t.Fatal("something is held")
			}
		}
	}
}

// TestFrameKept: a receiver that takes a reference keeps the payload.
func TestFrameKept(t *testing.T) {
	p := bytes.Repeat([]byte{9}, DirectLen)
	h := wire.Header{Len: DirectLen}
	f := Framer{Max: DirectLen}
	var kept *buf.Buf
	if _, err := f.Feed(append(h.Append(nil), p...), func(fr *Frame) error {
		fr.Buf.Ref()
		kept = fr.Buf
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	other := buf.Get(DirectLen)
	clear(other.B)
	if !bytes.Equal(kept.B, p) {
		t.Error("the buffer was given to somebody else")
	}
	other.Release()
	kept.Release()
}

type places struct{ freed int }

func (p *places) Free(*buf.Buf) { p.freed++ }

// TestFramerPlaces: large payloads go where Place says, which is asked with the
// header once for each, however the stream is cut; what is half there when the
// stream ends is given back.
func TestFramerPlaces(t *testing.T) {
	sizes := []int{100, DirectLen - 1, DirectLen, 3 * DirectLen, 5, 40000}
	var stream []byte
	for i, n := range sizes {
		h := wire.Header{Seq: uint64(i), Len: uint32(n)}
		stream = append(h.Append(stream), bytes.Repeat([]byte{byte(i)}, n)...)
	}
	held := buf.InUse()
	for _, chunk := range []int{1, 47, 48, 1000, len(stream)} {
		own := &places{}
		asked := ""
		mem := make([]byte, 1<<20)
		f := Framer{Max: 1 << 20, Place: func(raw []byte, n int) *buf.Buf {
			var h wire.Header
			h.Parse(raw)
			if int(h.Len) != n {
				t.Fatalf("asked for %d bytes for a payload of %d", n, h.Len)
			}
			asked += fmt.Sprint(h.Seq)
			if h.Seq == 3 {
				return nil
			}
			return buf.Foreign(mem[:n], own, uint32(h.Seq))
		}}
		frames := 0
		sink := func(fr *Frame) error {
			var h wire.Header
			h.Parse(fr.Raw)
			if placed := fr.Buf != nil && fr.Buf.Owner() == own; placed != (h.Seq == 2 || h.Seq == 5) {
				t.Errorf("chunks of %d: frame %d is in foreign memory: %v", chunk, h.Seq, placed)
			}
			if !bytes.Equal(fr.Payload, bytes.Repeat([]byte{byte(h.Seq)}, int(h.Len))) {
				t.Errorf("chunks of %d: frame %d has other bytes", chunk, h.Seq)
			}
			frames++
			return nil
		}
		for rest := stream; len(rest) > 0; rest = rest[min(chunk, len(rest)):] {
			if _, err := f.Feed(rest[:min(chunk, len(rest))], sink); err != nil {
				t.Fatal(err)
			}
		}
		if frames != len(sizes) || asked != "235" || own.freed != 2 {
			t.Errorf("chunks of %d: %d frames, asked for %s, %d given back", chunk, frames, asked, own.freed)
		}
		f.Feed(stream[:len(stream)-1], sink)
		if f.Close(); own.freed != 4 || buf.InUse() != held {
			t.Errorf("chunks of %d: %d given back at the end", chunk, own.freed)
		}
	}
}

func TestFramerDoesNotAllocate(t *testing.T) {
	h := wire.Header{Len: 64}
	var stream []byte
	for range 100 {
		stream = append(h.Append(stream), make([]byte, 64)...)
	}
	f := Framer{Max: wire.MaxDatagram}
	n := 0
	sink := func(*Frame) error { n++; return nil }
	if a := testing.AllocsPerRun(100, func() { f.Feed(stream[:777], sink); f.Feed(stream[777:], sink) }); a > 0.5 {
		t.Errorf("%v allocations for 100 frames", a)
	}
}

func FuzzFramer(f *testing.F) {
	big := wire.Header{Len: DirectLen}
	small := wire.Header{Len: 5}
	long := wire.Header{Len: 1 << 31}
	f.Add(append(append(small.Append(nil), "hello"...), small.Append(nil)...), int64(1))
	f.Add(append(append(big.Append(nil), make([]byte, DirectLen)...), small.Append(nil)...), int64(2))
	f.Add(append(long.Append(nil), 1, 2, 3), int64(3))
	f.Fuzz(func(t *testing.T, b []byte, seed int64) {
		sameFrames(t, 64<<10, b, rand.New(rand.NewSource(seed)))
	})
}

// TestFramerRandomStreams is the slice of fuzzing every test run gets.
func TestFramerRandomStreams(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	for range 300 {
		b := make([]byte, rng.Intn(4000))
		for i := range b { // mostly zeros: lengths are often small
			if rng.Intn(8) == 0 {
				b[i] = byte(rng.Intn(256))
			}
		}
		for i := 16; i+4 <= len(b); i += wire.HeaderLen + 10 {
			b[i], b[i+1] = 0, 0
		}
		sameFrames(t, 64<<10, b, rng)
	}
}

// TestFramerSkips: a payload that is given up in the middle gives its memory back at once; its
// frame comes when all of it has, without it, and the next frame is whole. With nothing partly
// there nothing is given up.
func TestFramerSkips(t *testing.T) {
	const n = 3 * DirectLen
	var stream []byte
	for i, n := range []int{n, 5} {
		h := wire.Header{Seq: uint64(i), Len: uint32(n)}
		stream = append(h.Append(stream), bytes.Repeat([]byte{byte(i)}, n)...)
	}
	held := buf.InUse()
	for _, first := range []int{wire.HeaderLen, wire.HeaderLen + 1, wire.HeaderLen + n - 1} {
		for _, chunk := range []int{1, 1000, len(stream)} {
			f := Framer{Max: n}
			f.Skip()
			var got []Frame
			sink := func(fr *Frame) error {
				got = append(got, Frame{Payload: bytes.Clone(fr.Payload), Skipped: fr.Skipped, Buf: fr.Buf, Raw: bytes.Clone(fr.Raw)})
				return nil
			}
			if _, err := f.Feed(stream[:first], sink); err != nil {
				t.Fatal(err)
			}
			f.Skip()
			if f.Want != nil || buf.InUse() != held || !f.Partial() {
				t.Fatalf("after %d bytes: wants %d, %d buffers are held, partial %v", first, len(f.Want), buf.InUse()-held, f.Partial())
			}
			f.Skip()
			for rest := stream[first:]; len(rest) > 0; rest = rest[min(chunk, len(rest)):] {
				if used, err := f.Feed(rest[:min(chunk, len(rest))], sink); err != nil || used != min(chunk, len(rest)) {
					t.Fatal(used, err)
				}
				if len(got) == 0 {
					f.Skip() // once is enough
				}
			}
			if len(got) != 2 || got[0].Skipped != n || got[0].Len() != n || got[0].Payload != nil || got[0].Buf != nil || !bytes.Equal(got[0].Raw, stream[:wire.HeaderLen]) {
				t.Fatalf("after %d bytes, in pieces of %d: %d frames, the first %+v", first, chunk, len(got), got)
			}
			if got[1].Skipped != 0 || !bytes.Equal(got[1].Payload, []byte{1, 1, 1, 1, 1}) || f.Partial() {
				t.Errorf("after %d bytes, in pieces of %d: the next is %+v", first, chunk, got[1])
			}
		}
	}
	f := Framer{Max: n}
	f.Feed(stream[:100], func(*Frame) error { return nil })
	f.Skip()
	f.Close()
	if f.Partial() {
		t.Error("a closed framer holds part of a frame")
	}
	stop := fmt.Errorf("stop")
	f.Feed(stream[:100], func(*Frame) error { return nil })
	f.Skip()
	if used, err := f.Feed(stream[100:], func(*Frame) error { return stop }); err != stop || used != wire.HeaderLen+n-100 {
		t.Errorf("%d bytes are used, %v", used, err)
	}
}
