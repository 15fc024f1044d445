package wire_test

import (
	"bytes"
	"math/rand"
	"net/netip"
	"testing"

	"github.com/rdsd/rdsd/wire"
	"github.com/rdsd/rdsd/wire/wiretest"
)

// Each target states one property, as a function of bytes; the fuzzer and the
// bounded random test below run the same.

func headerProperty(t testing.TB, b []byte) {
	var h, again wire.Header
	if err := h.Parse(b); err != nil {
		if len(b) >= wire.HeaderLen {
			t.Fatalf("%d bytes: %v", len(b), err)
		}
		return
	}
	b = bytes.Clone(b[:wire.HeaderLen])
	_, _, _ = h.Kind(false).String(), h.Kind(true).String(), h.String()
	out := h.Append(nil)
	if err := again.Parse(out); err != nil || again != h {
		t.Fatalf("%+v came back as %+v", h, again)
	}
	b[26], b[27], b[28], b[29] = 0, 0, 0, 0
	if !bytes.Equal(out, b) {
		t.Fatalf("%x encoded as %x", b, out)
	}
	if h.Csum != 0 && wire.ChecksumOK(b) != (wire.Checksum(b) == h.Csum) {
		t.Fatalf("%x: ChecksumOK and Checksum differ", b)
	}
	wire.SetChecksum(b)
	if !wire.ChecksumOK(b) || b[30]|b[31] == 0 {
		t.Fatalf("%x: own checksum does not verify", b)
	}
}

func handshakeProperty(t testing.TB, b []byte) {
	var e [wire.ExtLen]byte
	copy(e[:], b)
	x := wire.ParseHandshake(&e)
	if h := x.Hello; h != (wire.Hello{}) && (h.Version == 0 || h.Lanes < 1 || h.Lanes > wire.MaxLanes || h.CreditLog2 > wire.MaxCreditLog2 || h.Incarnation == 0) {
		t.Fatalf("%x: a hello out of bounds: %+v", e, h)
	}
	out := x.Encode()
	if again := wire.ParseHandshake(&out); again != x {
		t.Fatalf("%x: %+v came back as %+v", e, x, again)
	}
}

func refusalsProperty(t testing.TB, b []byte) {
	var out []byte
	err := wire.ParseRefusals(b, func(r wire.Refusal) error {
		out = wire.AppendRefusal(out, r)
		return nil
	})
	if err != nil && out != nil || err == nil && !bytes.Equal(out, b) {
		t.Fatalf("%x: %v, encoded again %x", b, err, out)
	}
}

func portStatesProperty(t testing.TB, b []byte) {
	var l []wire.PortState
	err := wire.ParsePortStates(b, func(s wire.PortState) { l = append(l, s) })
	if out := wire.AppendPortStates(nil, l); err != nil && l != nil || err == nil && !bytes.Equal(out, b) {
		t.Fatalf("%x: %v, encoded again %x", b, err, out)
	}
}

// trainProperty takes the first 16 bytes for the extension and the rest for the payload.
func trainProperty(t testing.TB, b []byte) {
	var e [wire.ExtLen]byte
	body := b[copy(e[:], b):]
	tr, err := wire.ParseTrain(&e, body)
	if err != nil {
		if tr.Body != nil || tr.Count != 0 || tr.Table {
			t.Fatalf("%x: %v, %+v", e, err, tr)
		}
		return
	}
	if e[0] != wire.ExtTrain {
		if !tr.Plain() {
			t.Fatalf("%x is %d datagrams", e, tr.Count)
		}
	} else if out := tr.Ext(); !bytes.Equal(out[:4], e[:4]) {
		t.Fatalf("%x encoded as %x", e, out)
	}
	payload := body
	if tr.Table {
		payload = body[wire.TableEntry*tr.Count:]
	}
	n := 0
	for c := tr.Cut(); ; n++ {
		if !bytes.Equal(c.Rest(), payload) || c.Left() != tr.Count-n {
			t.Fatalf("%x: %d bytes and %d datagrams left, want %d and %d", e, len(c.Rest()), c.Left(), len(payload), tr.Count-n)
		}
		next := c.Peek()
		p, ok := c.Next()
		if !ok {
			break
		}
		if !bytes.HasPrefix(payload, p) || cap(p) != len(p) || next != len(p) {
			t.Fatalf("%x: datagram %d has %d bytes, announced %d", e, n, len(p), next)
		}
		payload = payload[len(p):]
	}
	if n != tr.Count || !tr.Table && len(payload) != 0 {
		t.Fatalf("%x: %d datagrams, %d bytes behind the last", e, n, len(payload))
	}
}

func FuzzTrain(f *testing.F) {
	for _, v := range rdsdVectors(f) {
		switch v.Kind {
		case "train":
			f.Add(append(v.Hex, make([]byte, v.Number(f, "len", 32))...))
		case "table":
			e := wire.Train{Count: int(v.Number(f, "count", 16)), Table: true}.Ext()
			f.Add(append(e[:], v.Hex...))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) { trainProperty(t, b) })
}

func FuzzHeader(f *testing.F) {
	frames, derived := golden(f)
	for _, g := range append(frames, derived...) {
		f.Add(wiretest.Unhex(f, g.Header))
	}
	addVectors(f, "header")
	f.Fuzz(func(t *testing.T, b []byte) { headerProperty(t, b) })
}

func FuzzHandshake(f *testing.F) {
	addVectors(f, "handshake")
	f.Fuzz(func(t *testing.T, b []byte) { handshakeProperty(t, b) })
}

func FuzzRefusals(f *testing.F) {
	addVectors(f, "refusals")
	f.Fuzz(func(t *testing.T, b []byte) { refusalsProperty(t, b) })
}

func FuzzPortStates(f *testing.F) {
	addVectors(f, "portstates")
	f.Fuzz(func(t *testing.T, b []byte) { portStatesProperty(t, b) })
}

func FuzzReader(f *testing.F) {
	f.Add(wire.AppendReader(nil, &wire.Reader{Port: 4000, UID: 1, PID: 2, Queued: 3, Label: "db",
		Fillers: []wire.Filler{{Source: netip.MustParseAddrPort("10.0.0.1:9"), Datagrams: 4, Bytes: 5}, {Source: netip.MustParseAddrPort("[fd00::1]:9")}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := wire.ParseReader(b)
		if err != nil {
			if r.Port != 0 || r.Fillers != nil {
				t.Fatalf("%x: %v, but %+v", b, err, r)
			}
			return
		}
		if out := wire.AppendReader(nil, &r); !bytes.Equal(out, b) {
			t.Fatalf("%x encoded again %x", b, out)
		}
	})
}

func FuzzPorts(f *testing.F) {
	f.Add(wire.AppendPorts(nil, []uint16{1, 4000}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var l []uint16
		err := wire.ParsePorts(b, func(p uint16) { l = append(l, p) })
		if out := wire.AppendPorts(nil, l); err != nil && l != nil || err == nil && !bytes.Equal(out, b) || len(l) > wire.MaxAskedPorts {
			t.Fatalf("%x: %v, encoded again %x", b, err, out)
		}
	})
}

func addVectors(f *testing.F, kind string) {
	for _, v := range rdsdVectors(f) {
		if v.Kind == kind {
			f.Add(v.Hex)
		}
	}
}

// TestRandomBytes is the slice of fuzzing every test run gets.
func TestRandomBytes(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	likely := []byte{0, 0, 0, 1, 2, 3, 5, 6, 8, 16, wire.ExtHello, wire.ExtTrain, 0xff}
	for range 20000 {
		b := make([]byte, rng.Intn(72))
		rng.Read(b)
		for i := range b {
			if rng.Intn(2) == 0 {
				b[i] = likely[rng.Intn(len(likely))]
			}
		}
		headerProperty(t, b)
		handshakeProperty(t, b)
		refusalsProperty(t, b[:len(b)/12*12])
		portStatesProperty(t, b)
		trainProperty(t, b)
	}
}
