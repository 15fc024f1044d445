package wire_test

import (
	"bytes"
	"encoding/hex"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/wire"
	"github.com/rdsd/rdsd/wire/wiretest"
)

func rdsdVectors(t testing.TB) []wiretest.Vector {
	return wiretest.Read(t, "testdata/rdsd.txt", "port", "refusal", "datagram")
}

func TestRdsdVectors(t *testing.T) {
	vs := rdsdVectors(t)
	seen := map[string]int{}
	for _, v := range vs {
		seen[v.Kind]++
		t.Run(v.Kind+"/"+v.Name, func(t *testing.T) {
			_, invalid := v.Fields["invalid"]
			switch v.Kind {
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
				t.Fatalf("unknown kind %q", v.Kind)
			}
		})
	}
	for _, k := range []string{"header", "handshake", "portstates", "refusals", "train", "table"} {
		if seen[k] < 3 {
			t.Errorf("only %d vectors of kind %s", seen[k], k)
		}
	}
}

func headerVector(t *testing.T, v *wiretest.Vector) {
	var h wire.Header
	if err := h.Parse(v.Hex); err != nil {
		t.Fatal(err)
	}
	want := wire.Header{Seq: v.Number(t, "seq", 64), Ack: v.Number(t, "ack", 64), Len: uint32(v.Number(t, "len", 32)),
		SPort: uint16(v.Number(t, "sport", 16)), DPort: uint16(v.Number(t, "dport", 16)),
		Flags: uint8(v.Number(t, "flags", 8)), Credit: uint8(v.Number(t, "credit", 8)), Csum: h.Csum, Ext: h.Ext}
	if h != want {
		t.Errorf("parsed %+v\nwant   %+v", h, want)
	}
	if k := h.Kind(true).String(); k != v.Fields["kind"] {
		t.Errorf("kind %s, want %s", k, v.Fields["kind"])
	}
	again := h.Append(nil)
	if v.Fields["checksum"] == "ok" {
		if h.Csum == 0 || !wire.ChecksumOK(v.Hex) {
			t.Errorf("checksum %#04x, want %#04x", h.Csum, wire.Checksum(v.Hex))
		}
		wire.SetChecksum(again)
	} else if h.Csum != 0 {
		t.Errorf("checksum %#04x, want none", h.Csum)
	}
	if !bytes.Equal(again, v.Hex) {
		t.Errorf("encoded %x\nwas     %x", again, v.Hex)
	}
}

func handshakeVector(t *testing.T, v *wiretest.Vector, invalid bool) {
	if len(v.Hex) != wire.ExtLen {
		t.Fatalf("%d bytes", len(v.Hex))
	}
	want := wire.Handshake{NPaths: uint16(v.Number(t, "npaths", 16)), GenNum: uint32(v.Number(t, "gennum", 32)), SportIdx: v.Number(t, "sportidx", 1) != 0,
		Hello: wire.Hello{Version: uint8(v.Number(t, "hello.version", 8)), Lanes: uint8(v.Number(t, "hello.lanes", 8)),
			CreditLog2: uint8(v.Number(t, "hello.creditlog2", 8)), Caps: uint8(v.Number(t, "hello.caps", 8)), Incarnation: v.Number(t, "hello.incarnation", 64)}}
	e := [wire.ExtLen]byte(v.Hex)
	if got := wire.ParseHandshake(&e); got != want {
		t.Errorf("parsed %+v\nwant   %+v", got, want)
	}
	if got := want.Encode(); !invalid && v.Name != "type-above-16-ends-the-walk" && got != e {
		t.Errorf("encoded %x\nwant    %x", got, e)
	}
}

func portStatesVector(t *testing.T, v *wiretest.Vector, invalid bool) {
	var got []wire.PortState
	err := wire.ParsePortStates(v.Hex, func(s wire.PortState) { got = append(got, s) })
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
	if err != nil || !slices.Equal(text, v.List) {
		t.Errorf("%v, entries %q, want %q", err, text, v.List)
	}
	if again := wire.AppendPortStates(nil, got); !bytes.Equal(again, v.Hex) {
		t.Errorf("encoded %x", again)
	}
}

func refusalsVector(t *testing.T, v *wiretest.Vector, invalid bool) {
	var text []string
	var again []byte
	err := wire.ParseRefusals(v.Hex, func(r wire.Refusal) error {
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
	if err != nil || !slices.Equal(text, v.List) || !bytes.Equal(again, v.Hex) {
		t.Errorf("%v, entries %q, want %q; encoded %x", err, text, v.List, again)
	}
}

func trainVector(t *testing.T, v *wiretest.Vector, invalid bool) {
	if len(v.Hex) != wire.ExtLen {
		t.Fatalf("%d bytes", len(v.Hex))
	}
	e := [wire.ExtLen]byte(v.Hex)
	body := make([]byte, v.Number(t, "len", 32))
	got, err := wire.ParseTrain(&e, body)
	if invalid {
		if err != wire.ErrTrain || got.Body != nil || got.Count != 0 || got.Table || got.Joined {
			t.Errorf("%v, %+v", err, got)
		}
		return
	}
	count, table := int(v.Number(t, "count", 16)), v.Number(t, "table", 1) != 0
	if count == 0 { // no extension: a plain datagram
		if err != nil || !got.Plain() || len(got.Body) != len(body) {
			t.Errorf("%v, parsed %d datagrams, table %v", err, got.Count, got.Table)
		}
		return
	}
	joined := v.Number(t, "joined", 1) != 0
	if err != nil || got.Count != count || got.Table != table || got.Joined != joined || len(got.Body) != len(body) {
		t.Errorf("%v, parsed %d datagrams, table %v, joined %v; want %d, %v, %v", err, got.Count, got.Table, got.Joined, count, table, joined)
	}
	if got.Ext() != e {
		t.Errorf("encoded %x", got.Ext())
	}
}

func tableVector(t *testing.T, v *wiretest.Vector) {
	var got []string
	c := wire.Train{Body: v.Hex, Count: int(v.Number(t, "count", 16)), Table: true}.Cut()
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
	if !slices.Equal(got, v.List) {
		t.Errorf("datagrams %q, want %q", got, v.List)
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
