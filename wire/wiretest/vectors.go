package wiretest

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"testing"
)

// Vector is one entry of a file of vectors: the bytes of a message, and what
// they mean.
type Vector struct {
	Kind, Name string
	Hex        []byte
	Fields     map[string]string
	List       []string // values of the fields that may be repeated, in their order
}

// Read reads the vectors of file. A vector begins with "vector KIND NAME"; the
// lines after it are its fields, one "name value" each, among them "hex". A
// field that stands twice is an error unless it is one of repeated.
func Read(t testing.TB, file string, repeated ...string) (vs []Vector) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	list := map[string]bool{}
	for _, name := range repeated {
		list[name] = true
	}
	for i, line := range strings.Split(string(b), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, _ := strings.Cut(line, " ")
		if name == "vector" {
			kind, n, _ := strings.Cut(value, " ")
			vs = append(vs, Vector{Kind: kind, Name: n, Fields: map[string]string{}})
			continue
		}
		if len(vs) == 0 {
			t.Fatalf("%s:%d: %q stands before the first vector", file, i+1, line)
		}
		v := &vs[len(vs)-1]
		switch _, twice := v.Fields[name]; {
		case name == "hex":
			v.Hex = Unhex(t, value)
		case list[name]:
			v.List = append(v.List, value)
		case twice:
			t.Fatalf("%s:%d: %s is given twice", file, i+1, name)
		default:
			v.Fields[name] = value
		}
	}
	return vs
}

// Unhex decodes s.
func Unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Captured reports whether a kernel sent these bytes.
func (v *Vector) Captured() bool { return v.Fields["capture"] != "" }

// Number reads a field of so many bits; a field that is absent is 0.
func (v *Vector) Number(t testing.TB, name string, bits int) uint64 {
	t.Helper()
	s, ok := v.Fields[name]
	if !ok {
		return 0
	}
	n, err := strconv.ParseUint(s, 0, bits)
	if err != nil {
		t.Fatalf("%s: %s: %v", v.Name, name, err)
	}
	return n
}

// U16 reads a field of 16 bits.
func (v *Vector) U16(t testing.TB, name string) uint16 { return uint16(v.Number(t, name, 16)) }

// U32 reads a field of 32 bits.
func (v *Vector) U32(t testing.TB, name string) uint32 { return uint32(v.Number(t, name, 32)) }

// Invalid reports whether the vector is to be rejected, for the reason that its
// field "invalid" names, and fails when err says otherwise.
func (v *Vector) Invalid(t testing.TB, err error, reasons map[string]error) bool {
	t.Helper()
	why, is := v.Fields["invalid"]
	if want := reasons[why]; is != (want != nil) || !errors.Is(err, want) {
		t.Fatalf("parsed with %v, want %v (%q)", err, want, why)
	}
	return is
}

// Canonical returns the vector's bytes with zeros where its field "padding",
// a list of AT+BYTES, says that they have no meaning. Bits of keep, by the
// position of their byte, stay.
func (v *Vector) Canonical(t testing.TB, keep map[int]byte) []byte {
	t.Helper()
	b := bytes.Clone(v.Hex)
	for _, r := range strings.Fields(v.Fields["padding"]) {
		at, n, _ := strings.Cut(r, "+")
		from, err1 := strconv.Atoi(at)
		size, err2 := strconv.Atoi(n)
		if err1 != nil || err2 != nil {
			t.Fatalf("padding %q", r)
		}
		for i := from; i < from+size; i++ {
			b[i] &= keep[i]
		}
	}
	return b
}

// Encoded compares what encode appends with want. It appends to bytes that were
// there, in memory that was used before.
func Encoded(t testing.TB, want []byte, encode func([]byte) []byte) {
	t.Helper()
	dirty := bytes.Repeat([]byte{0xa5}, 2048)
	out := encode(dirty[:3])
	if !bytes.Equal(out[:3], dirty[:3]) || !bytes.Equal(out[3:], want) {
		t.Errorf("encoded %x\nwant    %x", out[3:], want)
	}
}

// SameBut fails when out differs from what in begins with, but for the bytes
// [from,to) of each pair.
func SameBut(t testing.TB, in, out []byte, pairs ...int) {
	t.Helper()
	if len(out) > len(in) {
		t.Fatalf("%x encoded as %x", in, out)
	}
	a, b := bytes.Clone(in[:len(out)]), bytes.Clone(out)
	for i := 0; i < len(pairs); i += 2 {
		clear(a[min(pairs[i], len(a)):min(pairs[i+1], len(a))])
		clear(b[min(pairs[i], len(b)):min(pairs[i+1], len(b))])
	}
	if !bytes.Equal(a, b) {
		t.Fatalf("%x encoded as %x", in, out)
	}
}

// Changed returns a copy of b with so many random changes: a byte replaced, bits
// turned, the end cut off. They get further into a parser than bytes without
// any form do.
func Changed(rng *rand.Rand, b []byte, times int) []byte {
	b = bytes.Clone(b)
	for range times {
		switch i := rng.Intn(len(b)); rng.Intn(3) {
		case 0:
			b[i] = byte(rng.Int())
		case 1:
			b[i] ^= 1 << rng.Intn(8)
		case 2:
			b = b[:max(i, 1)]
		}
	}
	return b
}
