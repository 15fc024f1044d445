package cong

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math/rand"
	"os"
	"slices"
	"testing"
)

// TestWireForm compares with maps a kernel sent (wire/testdata/vectors.json).
func TestWireForm(t *testing.T) {
	b, err := os.ReadFile("../wire/testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Frames []struct {
			Name    string
			Payload *struct {
				Bytes int
				Bits  []uint16 `json:"set_bits"`
			}
			Nonzero []struct {
				Offset int
				Hex    string
			} `json:"payload_nonzero_bytes"`
		}
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	maps := 0
	for _, f := range v.Frames {
		if f.Payload == nil {
			continue
		}
		maps++
		payload := make([]byte, f.Payload.Bytes)
		for _, z := range f.Nonzero {
			p, _ := hex.DecodeString(z.Hex)
			copy(payload[z.Offset:], p)
		}
		var m Map
		if _, _, err := m.Replace(payload, Ports, func(uint16, bool) {}); err != nil {
			t.Fatalf("%s: %v", f.Name, err)
		}
		if got := ports(&m); !slices.Equal(got, f.Payload.Bits) {
			t.Errorf("%s: ports %v, want %v", f.Name, got, f.Payload.Bits)
		}
		if again := m.AppendTo(nil); !bytes.Equal(again, payload) {
			t.Errorf("%s: encodes differently", f.Name)
		}
	}
	if maps < 3 {
		t.Errorf("only %d maps in the vectors", maps)
	}
}

func ports(m *Map) (l []uint16) {
	m.Each(func(p uint16) { l = append(l, p) })
	return l
}

func TestBitOrder(t *testing.T) {
	for _, c := range []struct {
		port  uint16
		at    int
		value byte
	}{{0, 0, 1}, {7, 0, 0x80}, {8, 1, 1}, {63, 7, 0x80}, {64, 8, 1}, {4000, 500, 1}, {4001, 500, 2}, {65535, 8191, 0x80}} {
		var m Map
		m.Set(c.port, true)
		want := make([]byte, Bytes)
		want[c.at] = c.value
		if got := m.AppendTo(nil); !bytes.Equal(got, want) {
			t.Errorf("port %d: not byte %d = %#02x", c.port, c.at, c.value)
		}
	}
}

func TestReplaceSize(t *testing.T) {
	var m Map
	m.Set(9, true)
	for _, n := range []int{0, 100, Bytes - 1, Bytes + 1} {
		if _, _, err := m.Replace(make([]byte, n), Ports, func(uint16, bool) { t.Error("called") }); !errors.Is(err, ErrSize) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if m.Len() != 1 || !m.Congested(9) {
		t.Error("a refused map changed something")
	}
}

// TestIdleMapIsSmall: a map without a set bit keeps no memory for bits.
func TestIdleMapIsSmall(t *testing.T) {
	var m Map
	if n := testing.AllocsPerRun(10, func() {
		m.Set(5, false)
		m.Congested(5)
		m.Replace(zeros[:], Ports, func(uint16, bool) {})
	}); n != 0 || m.w != nil {
		t.Errorf("%v allocations", n)
	}
	m.Set(5, true)
	m.Set(5, false)
	if m.w != nil || m.Len() != 0 {
		t.Error("the bits stay after the last is cleared")
	}
}

// model is the map everybody understands.
type model map[uint16]bool

func (o model) sorted() []uint16 {
	var l []uint16
	for p := range o {
		l = append(l, p)
	}
	slices.Sort(l)
	return l
}

// TestAgainstModel drives Set and Replace at random and compares all that a
// map can tell after every step.
func TestAgainstModel(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	var m Map
	o := model{}
	port := func() uint16 {
		if rng.Intn(2) == 0 {
			return uint16(rng.Intn(4)) // often the same ones
		}
		return uint16(rng.Intn(Ports))
	}
	for step := range 3000 {
		if rng.Intn(50) > 0 {
			p, on := port(), rng.Intn(3) > 0
			if got, want := m.Set(p, on), o[p] != on; got != want {
				t.Fatalf("step %d: Set(%d, %v) says %v", step, p, on, got)
			}
			if on {
				o[p] = true
			} else {
				delete(o, p)
			}
		} else {
			next := model{}
			var n Map
			for range rng.Intn(20) {
				p := port()
				next[p] = true
				n.Set(p, true)
			}
			last := -1
			changes := 0
			m.Replace(n.AppendTo(nil), Ports, func(p uint16, on bool) {
				if int(p) <= last || o[p] == on || next[p] != on {
					t.Fatalf("step %d: told that %d is %v", step, p, on)
				}
				if m.Congested(p) != on {
					t.Fatalf("step %d: told of %d before it is so", step, p)
				}
				last = int(p)
				changes++
			})
			want := 0
			for p := range o {
				if !next[p] {
					want++
				}
			}
			for p := range next {
				if !o[p] {
					want++
				}
			}
			if changes != want {
				t.Fatalf("step %d: %d changes, want %d", step, changes, want)
			}
			o = next
		}
		if m.Len() != len(o) {
			t.Fatalf("step %d: %d ports, want %d", step, m.Len(), len(o))
		}
		if step%20 == 0 && !slices.Equal(ports(&m), o.sorted()) {
			t.Fatalf("step %d: %v, want %v", step, ports(&m), o.sorted())
		}
	}
}

// FuzzMap: any 8192 bytes are a map, and the same bytes come out again.
// The input is a list of (offset, value) pairs over an empty map.
func FuzzMap(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		payload := make([]byte, Bytes)
		for ; len(b) >= 3; b = b[3:] {
			payload[(int(b[0])<<8|int(b[1]))%Bytes] = b[2]
		}
		var m Map
		if _, _, err := m.Replace(payload, Ports, func(uint16, bool) {}); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(m.AppendTo(nil), payload) {
			t.Fatal("encodes differently")
		}
		n := 0
		m.Each(func(uint16) { n++ })
		if n != m.Len() {
			t.Fatalf("%d ports, Len %d", n, m.Len())
		}
		m.Replace(zeros[:], Ports, func(uint16, bool) { n-- })
		if n != 0 || m.Len() != 0 || m.w != nil {
			t.Fatal("clearing tells of another number of ports")
		}
		if _, _, err := m.Replace(b, Ports, func(uint16, bool) {}); err == nil {
			t.Fatal("a short map was taken")
		}
	})
}

// Next finds the first of any set of ports from any port on, up to behind the last.
func TestNext(t *testing.T) {
	if p, ok := new(Map).Next(0); ok || p != 0 {
		t.Errorf("port %d of no ports", p)
	}
	sets := [][]int{{0}, {63}, {64}, {65535}, {0, 65535}, {1, 62, 63, 64, 65, 127, 128, 191, 192, 4000, 65471, 65472}}
	for _, set := range sets {
		var m Map
		from := []int{0, 1, Ports - 1, Ports, Ports + 1, Ports + 64}
		for _, p := range set {
			m.Set(uint16(p), true)
			from = append(from, max(p-64, 0), max(p-63, 0), max(p-1, 0), p, p+1, p+63, p+64, p+65)
		}
		for _, f := range from {
			want, found := 0, false
			for _, p := range set {
				if p >= f {
					want, found = p, true
					break
				}
			}
			if p, ok := m.Next(f); int(p) != want || ok != found {
				t.Errorf("of %v from %d on: %d, %v; want %d, %v", set, f, p, ok, want, found)
			}
		}
	}
}

// Replace says what differs, what became clear, and of each change no more than asked for.
func TestReplaceSays(t *testing.T) {
	bits := func(ports ...uint16) []byte {
		var m Map
		for _, p := range ports {
			m.Set(p, true)
		}
		return m.AppendTo(nil)
	}
	for _, c := range []struct {
		was, now []byte
		most     int
		freed    uint64
		differs  bool
		changed  []int // negative: clear
	}{
		{bits(), bits(), 9, 0, false, nil},
		{bits(), bits(7, 70), 9, 0, true, []int{7, 70}},
		{bits(7, 70), bits(7, 70), 9, 0, false, nil},
		{bits(7, 70), bits(70), 9, 1 << 7, true, []int{-7}},
		{bits(7, 70), bits(), 9, 1<<7 | 1<<6, true, []int{-7, -70}},
		{bits(7, 8, 70, 640), bits(8, 9, 70, 71), 9, 1<<7 | 1<<0, true, []int{-7, 9, 71, -640}},
		{bits(7, 8, 70, 640), bits(8, 9, 70, 71), 0, 1<<7 | 1<<0, true, nil},
		{bits(7, 8, 70, 640), bits(8, 9, 70, 71), 1, 1<<7 | 1<<0, true, []int{-7}},
		{bits(7, 8, 70, 640), bits(8, 9, 70, 71), 3, 1<<7 | 1<<0, true, []int{-7, 9, 71}},
	} {
		for _, asked := range []bool{true, false} {
			var m Map
			if _, _, err := m.Replace(c.was, 0, nil); err != nil {
				t.Fatal(err)
			}
			var got []int
			changed := func(p uint16, on bool) {
				if got = append(got, int(p)); !on {
					got[len(got)-1] = -int(p)
				}
			}
			if !asked {
				changed = nil
			}
			freed, differs, err := m.Replace(c.now, c.most, changed)
			if freed != c.freed || differs != c.differs || err != nil || asked && !slices.Equal(got, c.changed) {
				t.Errorf("most %d: freed %x, differs %v, %v, changes %v; want %+v", c.most, freed, differs, err, got, c)
			}
			if n := 0; !bytes.Equal(m.AppendTo(nil), c.now) {
				t.Error("it is not what it was replaced with")
			} else if m.Each(func(uint16) { n++ }); n != m.Len() {
				t.Errorf("%d ports, counted %d", n, m.Len())
			}
		}
	}
	var m Map
	m.Set(5, true)
	for _, n := range []int{0, Bytes - 1, Bytes + 1} {
		if _, differs, err := m.Replace(make([]byte, n), 0, nil); err == nil || differs || m.Len() != 1 {
			t.Errorf("a map of %d bytes: differs %v, %v", n, differs, err)
		}
	}
}

// TestToggling: with a Spare, a peer that has a port congested and clear again, as often as it likes, costs no
// memory for each change, and a map that others used before has nothing of theirs.
func TestToggling(t *testing.T) {
	var spare Spare
	maps := make([]Map, 2)
	change := func(i int) {
		m := &maps[i%2]
		if !m.SetBy(&spare, uint16(i), true) || m.SetBy(&spare, uint16(i), true) || m.Len() != 1 {
			t.Fatalf("change %d: %d ports are congested", i, m.Len())
		}
		if p, ok := m.Next(0); !ok || p != uint16(i) {
			t.Fatalf("change %d: port %d is congested", i, p)
		}
		if !m.SetBy(&spare, uint16(i), false) || m.Len() != 0 || m.w != nil {
			t.Fatalf("change %d: %d ports are congested still", i, m.Len())
		}
	}
	full := bytes.Repeat([]byte{0xff}, Bytes)
	whole := func() {
		for _, b := range [][]byte{full, zeros[:]} {
			if _, differs, err := maps[0].ReplaceBy(&spare, b, 0, nil); !differs || err != nil {
				t.Fatalf("%d ports are congested: %v", maps[0].Len(), err)
			}
		}
	}
	i := 0
	if n := testing.AllocsPerRun(1000, func() { i++; change(i); whole(); change(i + 1) }); n != 0 {
		t.Errorf("changes took memory %v times", n)
	}
	if n := testing.AllocsPerRun(10, func() { maps[0].Set(7, true); maps[0].Set(7, false) }); n != 1 {
		t.Errorf("without a Spare changes took memory %v times", n)
	}
	// One keeps the memory, and the other has its own.
	maps[0].SetBy(&spare, 1, true)
	maps[1].SetBy(&spare, 2, true)
	if maps[0].w == maps[1].w || maps[0].Congested(2) || maps[1].Congested(1) {
		t.Error("two maps share memory")
	}
}
