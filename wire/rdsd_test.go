package wire_test

import (
	"bytes"
	"encoding/hex"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/wire"
)

// vector is one entry of testdata/rdsd.txt.
type vector struct {
	kind, name string
	hex        []byte
	fields     map[string]string
	list       []string // repeated fields: port, refusal, datagram
}

func rdsdVectors(t testing.TB) (vs []vector) {
	b, err := os.ReadFile("testdata/rdsd.txt")
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(string(b), "\n") {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] == "#" || strings.HasPrefix(line, "#") {
			continue
		}
		if f[0] == "vector" && len(f) == 3 {
			vs = append(vs, vector{kind: f[1], name: f[2], fields: map[string]string{}})
			continue
		}
		if len(vs) == 0 {
			t.Fatalf("line %d: %q before the first vector", i+1, line)
		}
		v := &vs[len(vs)-1]
		switch value := strings.Join(f[1:], " "); f[0] {
		case "hex":
			v.hex = unhex(t, value)
		case "port", "refusal", "datagram":
			v.list = append(v.list, value)
		default:
			v.fields[f[0]] = value
		}
	}
	return vs
}

// number reads a field, 0 when it is absent.
func (v *vector) number(t testing.TB, name string, bits int) uint64 {
	s, ok := v.fields[name]
	if !ok {
		return 0
	}
	n, err := strconv.ParseUint(s, 0, bits)
	if err != nil {
		t.Fatalf("%s: %s: %v", v.name, name, err)
	}
	return n
}

func TestRdsdVectors(t *testing.T) {
	vs := rdsdVectors(t)
	seen := map[string]int{}
	for _, v := range vs {
		seen[v.kind]++
		t.Run(v.kind+"/"+v.name, func(t *testing.T) {
			_, invalid := v.fields["invalid"]
			switch v.kind {
			case "header":
				headerVector(t, &v)
			case "handshake":
				handshakeVector(t, &v, invalid)
			case "portstates":
				portStatesVector(t, &v, invalid)
			case "refusals":
				refusalsVector(t, &v, invalid)
			case "train":
				trainVector(t, &v, invalid)
			case "table":
				tableVector(t, &v)
			default:
				t.Fatalf("unknown kind %q", v.kind)
			}
		})
	}
	for _, k := range []string{"header", "handshake", "portstates", "refusals", "train", "table"} {
		if seen[k] < 3 {
			t.Errorf("only %d vectors of kind %s", seen[k], k)
		}
	}
}

func headerVector(t *testing.T, v *vector) {
	var h wire.Header
	if err := h.Parse(v.hex); err != nil {
		t.Fatal(err)
	}
	want := wire.Header{Seq: v.number(t, "seq", 64), Ack: v.number(t, "ack", 64), Len: uint32(v.number(t, "len", 32)),
		SPort: uint16(v.number(t, "sport", 16)), DPort: uint16(v.number(t, "dport", 16)),
		Flags: uint8(v.number(t, "flags", 8)), Credit: uint8(v.number(t, "credit", 8)), Csum: h.Csum, Ext: h.Ext}
	if h != want {
		t.Errorf("parsed %+v\nwant   %+v", h, want)
	}
	if k := h.Kind(true).String(); k != v.fields["kind"] {
		t.Errorf("kind %s, want %s", k, v.fields["kind"])
	}
	again := h.Append(nil)
	if v.fields["checksum"] == "ok" {
		if h.Csum == 0 || !wire.ChecksumOK(v.hex) {
			t.Errorf("checksum %#04x, want %#04x", h.Csum, wire.Checksum(v.hex))
		}
		wire.SetChecksum(again)
	} else if h.Csum != 0 {
		t.Errorf("checksum %#04x, want none", h.Csum)
	}
	if !bytes.Equal(again, v.hex) {
		t.Errorf("encoded %x\nwas     %x", again, v.hex)
	}
}

func handshakeVector(t *testing.T, v *vector, invalid bool) {
	if len(v.hex) != wire.ExtLen {
		t.Fatalf("%d bytes", len(v.hex))
	}
	want := wire.Handshake{NPaths: uint16(v.number(t, "npaths", 16)), GenNum: uint32(v.number(t, "gennum", 32)), SportIdx: v.number(t, "sportidx", 1) != 0,
		Hello: wire.Hello{Version: uint8(v.number(t, "hello.version", 8)), Lanes: uint8(v.number(t, "hello.lanes", 8)),
			CreditLog2: uint8(v.number(t, "hello.creditlog2", 8)), Caps: uint8(v.number(t, "hello.caps", 8)), Incarnation: v.number(t, "hello.incarnation", 64)}}
	e := [wire.ExtLen]byte(v.hex)
	if got := wire.ParseHandshake(&e); got != want {
		t.Errorf("parsed %+v\nwant   %+v", got, want)
	}
	if got := want.Encode(); !invalid && v.name != "type-above-16-ends-the-walk" && got != e {
		t.Errorf("encoded %x\nwant    %x", got, e)
	}
}

func portStatesVector(t *testing.T, v *vector, invalid bool) {
	var got []wire.PortState
	err := wire.ParsePortStates(v.hex, func(s wire.PortState) { got = append(got, s) })
	if invalid {
		if err != wire.ErrControl || got != nil {
			t.Errorf("%v, entries %v", err, got)
		}
		return
	}
	var text []string
	for _, s := range got {
		text = append(text, strconv.Itoa(int(s.Port))+map[bool]string{true: " congested", false: " clear"}[s.Congested])
	}
	if err != nil || !slices.Equal(text, v.list) {
		t.Errorf("%v, entries %q, want %q", err, text, v.list)
	}
	if again := wire.AppendPortStates(nil, got); !bytes.Equal(again, v.hex) {
		t.Errorf("encoded %x", again)
	}
}

func refusalsVector(t *testing.T, v *vector, invalid bool) {
	var text []string
	var again []byte
	err := wire.ParseRefusals(v.hex, func(r wire.Refusal) error {
		text = append(text, strconv.FormatUint(r.Seq, 10)+" "+strconv.Itoa(int(r.Reason)))
		again = wire.AppendRefusal(again, r)
		return nil
	})
	if invalid {
		if err != wire.ErrControl || text != nil {
			t.Errorf("%v, entries %q", err, text)
		}
		return
	}
	if err != nil || !slices.Equal(text, v.list) || !bytes.Equal(again, v.hex) {
		t.Errorf("%v, entries %q, want %q; encoded %x", err, text, v.list, again)
	}
}

func trainVector(t *testing.T, v *vector, invalid bool) {
	if len(v.hex) != wire.ExtLen {
		t.Fatalf("%d bytes", len(v.hex))
	}
	e := [wire.ExtLen]byte(v.hex)
	got, err := wire.ParseTrain(&e, int(v.number(t, "len", 32)))
	if invalid {
		if err != wire.ErrTrain || got != (wire.Train{}) {
			t.Errorf("%v, %+v", err, got)
		}
		return
	}
	want := wire.Train{Count: uint16(v.number(t, "count", 16)), Table: v.number(t, "table", 1) != 0}
	if err != nil || got != want {
		t.Errorf("%v, parsed %+v, want %+v", err, got, want)
	}
	if want.Count > 0 && want.Ext() != e {
		t.Errorf("encoded %x", want.Ext())
	}
}

func tableVector(t *testing.T, v *vector) {
	var got []string
	c := wire.Cut(v.hex, int(v.number(t, "count", 16)), true)
	for {
		left, next := c.Left(), c.Peek()
		p, ok := c.Next()
		if !ok {
			break
		}
		if next != len(p) || c.Left() != left-1 {
			t.Errorf("a datagram of %d bytes was announced with %d, %d were left and now %d", len(p), next, left, c.Left())
		}
		got = append(got, hex.EncodeToString(p))
	}
	if !slices.Equal(got, v.list) {
		t.Errorf("datagrams %q, want %q", got, v.list)
	}
}

// TestVectorsInPython lets Python read the same files: two readings of one
// layout, neither derived from the other.
func TestVectorsInPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 here")
	}
	out, err := exec.Command(python, "testdata/check.py").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	frames, _ := golden(t)
	if want := strconv.Itoa(len(rdsdVectors(t)) + len(frames)); strings.TrimSpace(string(out)) != want {
		t.Errorf("Python checked %q vectors, want %s", out, want)
	}
}
