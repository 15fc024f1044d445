package wire

import (
	"encoding/hex"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestControlLimits: the most a receiver takes in one message, and one more.
func TestControlLimits(t *testing.T) {
	var states []PortState
	for i := range MaxPortStates + 1 {
		states = append(states, PortState{Port: uint16(i), Congested: i%2 == 0})
	}
	n := 0
	if err := ParsePortStates(AppendPortStates(nil, states[:MaxPortStates]), func(s PortState) {
		if s != states[n] {
			t.Errorf("entry %d: %v", n, s)
		}
		n++
	}); err != nil || n != MaxPortStates {
		t.Errorf("%v after %d", err, n)
	}
	if err := ParsePortStates(AppendPortStates(nil, states), func(PortState) { t.Error("called") }); !errors.Is(err, ErrControl) {
		t.Error(err)
	}

	var b []byte
	for i := range MaxRefusals {
		b = AppendRefusal(b, Refusal{uint64(i) + 1, ReasonNoRoom})
	}
	n = 0
	if err := ParseRefusals(b, func(r Refusal) error { n++; return nil }); err != nil || n != MaxRefusals {
		t.Errorf("%v after %d", err, n)
	}
	if err := ParseRefusals(AppendRefusal(b, Refusal{1, 1}), func(Refusal) error { t.Error("called"); return nil }); !errors.Is(err, ErrControl) {
		t.Error(err)
	}
}

// TestAskedPorts: as many ports as may be asked for are read in their order; one more,
// and half a port, is nothing at all.
func TestAskedPorts(t *testing.T) {
	var ports, got []uint16
	for i := range uint16(MaxAskedPorts) {
		ports = append(ports, 258*i+1)
	}
	read := func(p uint16) { got = append(got, p) }
	b := AppendPorts(nil, ports)
	if err := ParsePorts(b, read); err != nil || !slices.Equal(got, ports) {
		t.Errorf("%v: %v, want %v", err, got, ports)
	}
	got = nil
	for _, c := range [][]byte{append(b[:len(b):len(b)], 1, 2), append(b[:len(b):len(b)], 1), b[:len(b)-1], {1}} {
		if err := ParsePorts(c, read); err != ErrControl || got != nil {
			t.Errorf("%d bytes: %v, read was %v", len(c), err, got)
		}
	}
	if err := ParsePorts(nil, read); err != nil || got != nil {
		t.Errorf("nothing: %v, read was %v", err, got)
	}
}

func TestParseRefusalsStops(t *testing.T) {
	b := AppendRefusal(AppendRefusal(nil, Refusal{1, ReasonNoPort}), Refusal{2, ReasonNoPort})
	stop, n := errors.New("stop"), 0
	if err := ParseRefusals(b, func(Refusal) error { n++; return stop }); err != stop || n != 1 {
		t.Errorf("%v after %d", err, n)
	}
	// A later entry that is malformed spoils the earlier ones too.
	b[len(b)-4] = 0
	if err := ParseRefusals(b, func(Refusal) error { n++; return nil }); err != ErrControl || n != 1 {
		t.Errorf("%v after %d", err, n)
	}
}

// TestReaderBytes: every field of a CtlTellPort at its place, what is too much left
// out, and no other length, count or padding taken.
func TestReaderBytes(t *testing.T) {
	r := Reader{Port: 0x0102, UID: 0x03040506, PID: 0x0708090a, Queued: 0x0b0c0d0e0f101112, Label: "ab", Fillers: []Filler{
		{netip.MustParseAddrPort("10.1.2.3:4660"), 0x13141516, 0x1718191a1b1c1d1e}, {netip.MustParseAddrPort("[fd00::9]:9"), 1, 2}}}
	b := AppendReader(nil, &r)
	want := "0102" + "02" + "02" + "03040506" + "0708090a" + "0b0c0d0e0f101112" + "6162" +
		"00000000000000000000ffff0a010203" + "1234" + "0000" + "13141516" + "1718191a1b1c1d1e" +
		"fd000000000000000000000000000009" + "0009" + "0000" + "00000001" + "0000000000000002"
	if hex.EncodeToString(b) != want {
		t.Errorf("%x, want %s", b, want)
	}
	if got, err := ParseReader(b); err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("%+v, %v", got, err)
	}
	for n := range len(b) {
		if _, err := ParseReader(b[:n]); err != ErrControl {
			t.Errorf("%d bytes of %d: %v", n, len(b), err)
		}
	}
	if _, err := ParseReader(append(b[:len(b):len(b)], 0)); err != ErrControl {
		t.Errorf("a byte more: %v", err)
	}
	for _, at := range []int{22 + 18, 22 + 19, 22 + 32 + 18, 22 + 32 + 19} {
		c := append([]byte(nil), b...)
		c[at] = 1
		if _, err := ParseReader(c); err != ErrControl {
			t.Errorf("byte %d is not zero: %v", at, err)
		}
	}
	most := Reader{Label: strings.Repeat("x", MaxReaderLabel), Fillers: make([]Filler, MaxFillers)}
	for i := range most.Fillers {
		most.Fillers[i].Source = netip.MustParseAddrPort("10.0.0.1:1")
	}
	b = AppendReader(nil, &most)
	more := Reader{Label: most.Label + "y", Fillers: append(most.Fillers[:MaxFillers:MaxFillers], Filler{})}
	if got, err := ParseReader(b); err != nil || !reflect.DeepEqual(got, most) || string(AppendReader(nil, &more)) != string(b) {
		t.Errorf("the most there may be: %+v, %v", got, err)
	}
	for _, c := range [][]byte{
		append(append(append([]byte(nil), b[:2]...), MaxFillers+1, MaxReaderLabel), append(b[4:len(b):len(b)], make([]byte, fillerLen)...)...),
		append(append(append([]byte(nil), b[:2]...), MaxFillers, MaxReaderLabel+1), append([]byte("z"), b[4:]...)...),
	} {
		if _, err := ParseReader(c); err != ErrControl {
			t.Errorf("more than the most: %v", err)
		}
	}
}
