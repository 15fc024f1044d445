package tcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/transport"
)

// TestReadHandshake: one frame is read and no byte more; what begins no handshake is
// refused with its reason, and what ends in the middle is an error of reading.
func TestReadHandshake(t *testing.T) {
	good := handshake(transport.TagAccept, "private")
	with := func(edit func(b []byte)) []byte { // under its checksum
		b := bytes.Clone(good)
		edit(b)
		return b
	}
	longest := func(n int) string { return strings.Repeat("x", n) }
	data := make([]byte, transport.TagLen)
	(&transport.Tag{Kind: transport.OpSend, Len: 3}).Put(data)
	second := make([]byte, transport.TagLen)
	(&transport.Tag{Kind: transport.TagAccept, Seq: 1}).Put(second)
	for _, c := range []struct {
		what    string
		b       []byte
		private string
		wrong   bool // it is refused, and not merely cut
	}{
		{"accepted", good, "private", false},
		{"rejected", handshake(transport.TagReject, "no"), "no", false},
		{"nothing private", handshake(transport.TagConnect, ""), "", false},
		{"as much as may be", handshake(transport.TagConnect, longest(transport.MaxConnect)), longest(transport.MaxConnect), false},
		{"as much as an answer may be", handshake(transport.TagAccept, longest(transport.MaxAccept)), longest(transport.MaxAccept), false},
		{"more", with(func(b []byte) { binary.LittleEndian.PutUint32(b[12:], transport.MaxAccept+1) }), "", true},
		{"a wrong checksum", with(func(b []byte) { b[0]++ }), "", true},
		{"a wrong bit", with(func(b []byte) { b[24]++ }), "", true},
		{"a frame of data", data, "", true},
		{"the second frame of a link", second, "", true},
	} {
		here, there := net.Pipe()
		go func() { // ends with here
			there.Write(append(bytes.Clone(c.b), "next"...))
			there.Close()
		}()
		tag, private, err := readHandshake(here)
		bad, ok := errors.AsType[*transport.TagError](err)
		switch {
		case c.wrong && (!ok || bad.Why == ""):
			t.Errorf("%s: %+v, %v", c.what, tag, err)
		case !c.wrong && (err != nil || string(private) != c.private || int(tag.Len) != len(private)):
			t.Errorf("%s: %+v, %q, %v", c.what, tag, private, err)
		case !c.wrong:
			if rest, err := io.ReadAll(here); string(rest) != "next" || err != nil {
				t.Errorf("%s: %q is left, %v", c.what, rest, err)
			}
		}
		here.Close()
	}
	for n := range len(good) {
		here, there := net.Pipe()
		go func() { // ends with here
			there.Write(good[:n])
			there.Close()
		}()
		if tag, _, err := readHandshake(here); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut at %d bytes: %+v, %v", n, tag, err)
		}
		here.Close()
	}
}
