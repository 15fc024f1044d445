package transport

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// Header fields of a fuzzed stream are made valid where a random one would never
// be: the number, the checksum, and, for some keys, a region's key and address.

// FuzzTag: whatever Parse takes, Put writes again, and nothing else.
func FuzzTag(f *testing.F) {
	for _, t := range []Tag{{Kind: OpWrite, Len: 1 << 31}, {Kind: OpSendInval, Seq: 9, Key: 1}, {Kind: TagAccept, Addr: tagMagic, Len: 56}} {
		b := make([]byte, TagLen)
		t.Put(b)
		f.Add(b, t.Seq)
	}
	f.Fuzz(func(t *testing.T, b []byte, seq uint32) {
		if len(b) < TagLen {
			return
		}
		b = b[:TagLen]
		var tag Tag
		if tag.Parse(b, seq) != nil {
			return
		}
		back := make([]byte, TagLen)
		if tag.Put(back); !bytes.Equal(b, back) || tag.Seq != seq {
			t.Errorf("%x was taken as %+v, which is %x", b, tag, back)
		}
	})
}

// fuzzWorld is a domain with two regions in a field of memory, and a reader.
type fuzzWorld struct {
	d     *Regions
	field []byte // regions lie at 100:1100 and 3000:70000
	keys  [2]uint32
	addrs [2]uint64
	ends  [2]int
	begin [2]int
	r     TagReader
	log   []string
	depth int
	fail  error
}

func newFuzzWorld() *fuzzWorld {
	w := &fuzzWorld{d: NewRegions([32]byte{9}), field: make([]byte, 80000), begin: [2]int{100, 3000}, ends: [2]int{1100, 70000}}
	for i := range w.keys {
		w.keys[i], w.addrs[i] = w.d.Register(w.field[w.begin[i]:w.ends[i]])
	}
	w.r = NewTagReader(w.d, 1, new(SentCount))
	w.r.Start(w)
	return w
}

func (w *fuzzWorld) note(format string, args ...any) error {
	if w.depth != 1 {
		panic("called outside of Begin and End")
	}
	if w.fail != nil {
		panic("called after an error")
	}
	w.log = append(w.log, fmt.Sprintf(format, args...))
	return nil
}

func (w *fuzzWorld) Begin()   { w.depth++ }
func (w *fuzzWorld) End()     { w.depth-- }
func (w *fuzzWorld) Sent(int) { panic("nothing was posted") }
func (w *fuzzWorld) Written(p Placed) error {
	if !p.Known {
		panic("a place that is not known")
	}
	return w.note("written %x %x %d %x", p.Key, p.Addr, p.N, p.Imm)
}
func (w *fuzzWorld) Received(data []byte, imm uint32, has bool) error {
	if len(data) > MaxSend {
		panic("a send above the limit")
	}
	return w.note("received %x %x %v", data, imm, has)
}
func (w *fuzzWorld) Invalidated(key uint32, _ int) error {
	if w.d.find(key) != nil {
		panic("called before the key was revoked")
	}
	return w.note("invalidated %x", key)
}
func (w *fuzzWorld) Revoked(uint32, int) error { panic("no revocation is pending over a byte stream") }
func (w *fuzzWorld) Closed(error)              {}

// read gives the stream to the reader in pieces, whose sizes cuts says, some of
// them straight into where Want says. It returns the error that ended it.
func (w *fuzzWorld) read(t *testing.T, stream, cuts []byte) error {
	for i := 0; len(stream) > 0; i++ {
		n := len(stream)
		direct := true
		if len(cuts) > 0 {
			c := cuts[i%len(cuts)]
			n, direct = min(n, 1+int(c>>1)*int(c>>1)), c&1 == 0
		}
		want, err := w.r.Want()
		if err != nil {
			return err
		}
		if direct && want != nil {
			k := copy(want, stream[:n])
			stream, n = stream[k:], n-k
			if err := w.r.Filled(k); err != nil {
				return err
			}
		}
		if err := w.r.Feed(stream[:n]); err != nil {
			return err
		}
		stream = stream[n:]
		if i%3 == 0 {
			w.r.EndTurn()
		}
	}
	return nil
}

// tagStream makes a stream of bytes that are nearly frames.
func (w *fuzzWorld) tagStream(b []byte) []byte {
	var stream []byte
	for seq := uint32(1); len(b) >= 16; seq++ {
		// kind, key, flags, imm | address | length, payload seed
		tag := Tag{Kind: OpKind(b[0] % 7), Seq: seq, Imm: uint32(b[3]), Addr: uint64(binary.LittleEndian.Uint32(b[4:])), Len: binary.LittleEndian.Uint32(b[8:])}
		switch k := b[1] % 4; k {
		case 0, 1: // a region's, near its memory
			tag.Key = w.keys[k]
			tag.Addr = w.addrs[k] + uint64(int64(int32(tag.Addr)>>14))
			tag.Len = tag.Len % uint32(w.ends[k]-w.begin[k]+8)
		case 2:
			tag.Key = binary.LittleEndian.Uint32(b[12:])
		}
		if b[2]&7 == 7 {
			tag.Seq++
		}
		var h [TagLen]byte
		tag.Put(h[:])
		if b[2]&0x38 == 0x38 {
			h[b[3]%TagLen] ^= 1
		}
		stream = append(stream, h[:]...)
		n := min(int(tag.Len), 70000)
		if b[2]&0xc0 == 0xc0 {
			n = n / 2
		}
		for i := range n {
			stream = append(stream, b[12]+byte(i))
		}
		b = b[16:]
	}
	return append(stream, b...)
}

// FuzzTagReader: whatever comes, in whatever pieces, nothing outside the
// registered memory is written, the handler is called as it should be, and how
// the stream is cut makes no difference.
func FuzzTagReader(f *testing.F) {
	f.Fuzz(func(t *testing.T, b, cuts []byte) {
		if len(b) > 512 {
			return
		}
		one, two := newFuzzWorld(), newFuzzWorld()
		stream := one.tagStream(b)
		err1 := one.read(t, stream, nil)
		err2 := two.read(t, stream, cuts)
		for _, w := range []*fuzzWorld{one, two} {
			w.fail = err1
			w.r.EndTurn()
			w.r.Close()
			if w.depth != 0 {
				t.Error("Begin without End")
			}
			for i, x := range w.field {
				if x != 0 && (i < 100 || i >= 1100 && i < 3000 || i >= 70000) {
					t.Fatalf("byte %d was written", i)
				}
			}
			for i, k := range w.keys {
				if w.d.Revoke(k) != Idle {
					t.Errorf("key %d is busy when the reader is closed", i)
				}
			}
		}
		if fmt.Sprint(err1) != fmt.Sprint(err2) || fmt.Sprint(one.log) != fmt.Sprint(two.log) || !bytes.Equal(one.field, two.field) {
			t.Errorf("cut otherwise, the stream ends with %v instead of %v, after %d instead of %d calls", err2, err1, len(two.log), len(one.log))
		}
		var bad *TagError
		var denied *AccessError
		if err1 != nil && !errors.As(err1, &bad) && !errors.As(err1, &denied) {
			t.Errorf("ended with %v", err1)
		}
	})
}

// tagSeeds are what the corpus begins with: description, cuts.
func tagSeeds() map[string][2][]byte {
	op := func(kind OpKind, key byte, flags, imm byte, addr, n uint32, seed byte) []byte {
		b := []byte{byte(kind), key, flags, imm}
		b = binary.LittleEndian.AppendUint32(b, addr<<14)
		b = binary.LittleEndian.AppendUint32(b, n)
		return append(b, seed, 0, 0, 0)
	}
	cat := func(l ...[]byte) []byte { return bytes.Join(l, nil) }
	return map[string][2][]byte{
		"all-kinds": {cat(op(OpWrite, 0, 0, 0, 0, 1000, 1), op(OpWriteImm, 1, 0, 5, 10, 60000, 2), op(OpSend, 3, 0, 0, 0, 50, 3),
			op(OpSendImm, 3, 0, 9, 0, 65536, 4), op(OpSendInval, 0, 0, 0, 0, 3, 5)), []byte{3, 200, 40}},
		"revoked-then-written": {cat(op(OpSendInval, 1, 0, 0, 0, 0, 0), op(OpWrite, 1, 0, 0, 0, 10, 1)), []byte{20}},
		"one-beyond":           {cat(op(OpWriteImm, 0, 0, 0, 1, 1000, 1)), nil},
		"guessed":              {cat(op(OpWrite, 2, 0, 0, 7, 100, 1)), []byte{255}},
		"nothing":              {cat(op(OpWriteImm, 2, 0, 1, 0, 0, 0), op(OpSend, 3, 0, 0, 0, 0, 0)), []byte{2}},
		"half-a-payload":       {cat(op(OpWriteImm, 1, 0xc0, 1, 0, 30000, 7)), []byte{101, 100}},
		"half-a-header":        {[]byte("0123456789"), []byte{1}},
		"absurd-length":        {cat(op(OpSend, 3, 0, 0, 0, 0xffffffff, 1)), nil},
		"absurd-write":         {cat(op(OpWrite, 2, 0, 0, 0, 0xffffffff, 1)), nil},
		"bad-checksum":         {cat(op(OpSend, 3, 0, 1, 0, 9, 1), op(OpSend, 3, 0x38, 29, 0, 9, 1)), []byte{7}},
		"bad-number":           {cat(op(OpSend, 3, 7, 1, 0, 9, 1)), []byte{9}},
	}
}

// TestTagCorpus: the seeds lie in testdata, where a fuzzer of another build
// begins.
func TestTagCorpus(t *testing.T) {
	for name, c := range tagSeeds() {
		want := fmt.Sprintf("go test fuzz v1\n[]byte(%q)\n[]byte(%q)\n", c[0], c[1])
		file := filepath.Join("testdata", "fuzz", "FuzzTagReader", name)
		got, err := os.ReadFile(file)
		if string(got) == want {
			continue
		}
		if os.Getenv("UPDATE") == "" {
			t.Errorf("%s: differs, or %v; UPDATE=1 writes it", file, err)
			continue
		}
		os.MkdirAll(filepath.Dir(file), 0o755)
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
