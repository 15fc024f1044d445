package transport

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/cong"
	"github.com/rdsd/rdsd/wire"
)

var update = flag.Bool("update", false, "write testdata/*.txt anew")

// tcpStream is one direction of one TCP connection of a capture.
type tcpStream struct {
	src, dst netip.AddrPort
	isn      uint32
	data     []byte
	have     []bool
	end      string // how this side ended it: "", "FIN", "RST"
	frames   []wire.Header
	payloads [][]byte
}

// readCapture reassembles the TCP streams of a little-endian Ethernet pcap, in
// the order in which they began.
func readCapture(t *testing.T, name string) (streams []*tcpStream) {
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	le, be := binary.LittleEndian, binary.BigEndian
	if len(b) < 24 || le.Uint32(b) != 0xa1b2c3d4 || le.Uint32(b[20:]) != 1 {
		t.Fatal("not a little-endian Ethernet pcap")
	}
	open := map[[2]netip.AddrPort]*tcpStream{}
	for b = b[24:]; len(b) >= 16; {
		n := le.Uint32(b[8:])
		if le.Uint32(b[12:]) != n {
			t.Fatal("a packet was cut off when it was captured")
		}
		p := b[16 : 16+n]
		b = b[16+n:]
		if be.Uint16(p[12:]) != 0x0800 || p[14+9] != 6 {
			continue // not IPv4, not TCP
		}
		ip := p[14:]
		ip = ip[:be.Uint16(ip[2:])]
		tcp := ip[int(ip[0]&15)*4:]
		src := netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[12:])), be.Uint16(tcp))
		dst := netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[16:])), be.Uint16(tcp[2:]))
		key := [2]netip.AddrPort{src, dst}
		seq, flags, data := be.Uint32(tcp[4:]), tcp[13], tcp[int(tcp[12]>>4)*4:]
		if flags&2 != 0 { // SYN
			if s := open[key]; s == nil || s.isn != seq {
				s = &tcpStream{src: src, dst: dst, isn: seq}
				open[key] = s
				streams = append(streams, s)
			}
			continue
		}
		s := open[key]
		if s == nil { // the capture began in the middle of this connection
			s = &tcpStream{src: src, dst: dst, isn: seq - 1}
			open[key] = s
			streams = append(streams, s)
		}
		at := int(int32(seq - s.isn - 1)) // -1: a keep-alive
		if len(data) > 0 && (at < 0 || at > 1<<24) {
			t.Fatalf("%v>%v: data at offset %d", src, dst, at)
		}
		for len(data) > 0 && len(s.data) < at+len(data) {
			s.data, s.have = append(s.data, 0), append(s.have, false)
		}
		for i, c := range data {
			if s.have[at+i] && s.data[at+i] != c {
				t.Fatalf("%v>%v: a TCP retransmission with other bytes", src, dst)
			}
			s.data[at+i], s.have[at+i] = c, true
		}
		if flags&1 != 0 {
			s.end = "FIN"
		} else if flags&4 != 0 {
			s.end = "RST"
		}
	}
	for _, s := range streams {
		if i := bytes.IndexByte(boolBytes(s.have), 0); i >= 0 {
			t.Fatalf("%v>%v: byte %d was never captured", s.src, s.dst, i)
		}
	}
	return streams
}

func boolBytes(l []bool) []byte {
	b := make([]byte, len(l))
	for i, v := range l {
		if v {
			b[i] = 1
		}
	}
	return b
}

// cutStream runs a stream through a Framer in chunks of n bytes.
func (s *tcpStream) cutStream(t *testing.T, n int) {
	s.frames, s.payloads = nil, nil
	f := Framer{Max: wire.MaxDatagram}
	for b := s.data; len(b) > 0; b = b[min(n, len(b)):] {
		if _, err := f.Feed(b[:min(n, len(b))], func(fr *Frame) error {
			var h wire.Header
			if err := h.Parse(fr.Raw); err != nil {
				return err
			}
			s.frames = append(s.frames, h)
			s.payloads = append(s.payloads, bytes.Clone(fr.Payload))
			if !bytes.Equal(h.Append(nil), fr.Raw) {
				return fmt.Errorf("%v encodes differently", &h)
			}
			return nil
		}); err != nil {
			t.Fatalf("%v>%v: %v", s.src, s.dst, err)
		}
	}
	if f.Partial() {
		t.Fatalf("%v>%v: %d bytes end in the middle of a frame", s.src, s.dst, len(s.data))
	}
}

// describe is the text golden files hold.
func (s *tcpStream) describe() string {
	var w strings.Builder
	fmt.Fprintf(&w, "%v > %v, %d bytes %s\n", s.src, s.dst, len(s.data), s.end)
	for i, h := range s.frames {
		fmt.Fprintf(&w, "\t%v seq=%d len=%d %d>%d flags=%#02x", h.Kind(false), h.Seq, h.Len, h.SPort, h.DPort, h.Flags)
		if x := wire.ParseHandshake(&h.Ext); x != (wire.Handshake{}) {
			fmt.Fprintf(&w, " npaths=%d", x.NPaths)
		}
		if h.Kind(false) == wire.KindCongMap {
			var m cong.Map
			fmt.Fprint(&w, " ports")
			m.Replace(s.payloads[i], cong.Ports, func(p uint16, _ bool) { fmt.Fprintf(&w, " %d", p) })
		}
		w.WriteByte('\n')
	}
	return w.String()
}

// TestCaptures cuts whole conversations of two Linux kernels into frames and
// compares them with testdata/*.txt (-update writes these).
func TestCaptures(t *testing.T) {
	files, _ := filepath.Glob("../wire/testdata/*.pcap")
	if len(files) != 5 {
		t.Fatalf("%d captures, want 5", len(files))
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".pcap")
		t.Run(name, func(t *testing.T) {
			streams := readCapture(t, file)
			var texts []string
			for _, chunk := range []int{1 << 30, 1448, 1} {
				var w strings.Builder
				for _, s := range streams {
					s.cutStream(t, chunk)
					w.WriteString(s.describe())
				}
				texts = append(texts, w.String())
			}
			if texts[1] != texts[0] || texts[2] != texts[0] {
				t.Fatal("the frames depend on the chunks")
			}
			golden := filepath.Join("testdata", name+".txt")
			if *update {
				if err := os.WriteFile(golden, []byte(texts[0]), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if texts[0] != string(want) {
				t.Errorf("frames:\n%s\nwant:\n%s", texts[0], want)
			}
			if f := captureFacts[name]; f == nil {
				t.Error("nothing is known about this capture")
			} else {
				f(t, streams)
			}
		})
	}
}

// each calls f for every frame of the streams, in order.
func each(streams []*tcpStream, f func(s *tcpStream, h *wire.Header, p []byte)) {
	for _, s := range streams {
		for i := range s.frames {
			f(s, &s.frames[i], s.payloads[i])
		}
	}
}

func count(streams []*tcpStream, k wire.Kind) (n int) {
	each(streams, func(_ *tcpStream, h *wire.Header, _ []byte) {
		if h.Kind(false) == k {
			n++
		}
	})
	return n
}

// captureFacts is what each capture is known to show, whatever its golden file says.
var captureFacts = map[string]func(t *testing.T, streams []*tcpStream){
	"tcp-start-multipath-ping": func(t *testing.T, l []*tcpStream) {
		if len(l) != 16 {
			t.Errorf("%d streams, want 8 connections", len(l))
		}
		for i, s := range l {
			if from := s.src.Addr().String(); (from == "10.0.0.1") != (i%2 == 0) || i%2 == 0 && s.dst.Port() != wire.TCPPort {
				t.Errorf("stream %d is %v > %v: the smaller address connects", i, s.src, s.dst)
			}
		}
		if p, q := count(l, wire.KindPing), count(l, wire.KindPong); p != 3 || q != 3 {
			t.Errorf("%d pings, %d pongs", p, q)
		}
		if p, q := count(l, wire.KindProbe), count(l, wire.KindProbeReply); p != 2 || q != 2 {
			t.Errorf("%d handshake pings, %d pongs: both sides ask", p, q)
		}
		each(l, func(_ *tcpStream, h *wire.Header, _ []byte) {
			if k := h.Kind(false); (k == wire.KindProbe || k == wire.KindProbeReply) && wire.ParseHandshake(&h.Ext) != (wire.Handshake{NPaths: 8}) {
				t.Errorf("handshake %x", h.Ext)
			}
		})
	},
	"tcp-poke-and-connect-back": func(t *testing.T, l []*tcpStream) {
		if s := l[0]; s.src.Addr().String() != "10.0.0.2" || len(s.data)+len(l[1].data) != 0 {
			t.Errorf("first %v > %v with %d and %d bytes; want a poke of the larger side, without a byte", s.src, s.dst, len(s.data), len(l[1].data))
		}
		if l[2].src.Addr().String() != "10.0.0.1" || len(l[2].frames) == 0 {
			t.Error("the smaller side did not connect back")
		}
	},
	"tcp-both-start": func(t *testing.T, l []*tcpStream) {
		// The capture ends before the last answer.
		if p, q := count(l, wire.KindPing), count(l, wire.KindPong); p != 6 || q != 5 {
			t.Errorf("%d pings, %d pongs", p, q)
		}
	},
	"tcp-congestion": func(t *testing.T, l []*tcpStream) {
		var on []int
		data := 0
		each(l, func(_ *tcpStream, h *wire.Header, p []byte) {
			switch h.Kind(false) {
			case wire.KindCongMap:
				n := -1
				var m cong.Map
				m.Replace(p, cong.Ports, func(p uint16, _ bool) { n = int(p) })
				on = append(on, n)
			case wire.KindData:
				if h.Len == 1000 {
					data++
				}
			}
		})
		if text := fmt.Sprint(on); !strings.Contains(text, "4000 -1") || data != 9 {
			t.Errorf("maps %v, %d datagrams; want port 4000 set after 9, then cleared", text, data)
		}
	},
	"tcp-reconnect-retransmit": func(t *testing.T, l []*tcpStream) {
		first := map[uint64][]byte{}
		again := 0
		each(l, func(_ *tcpStream, h *wire.Header, p []byte) {
			switch {
			case h.Kind(false) != wire.KindData:
			case h.Flags == wire.FlagRetransmitted:
				again++
				if !bytes.Equal(first[h.Seq], p) {
					t.Errorf("sequence %d comes again with another payload", h.Seq)
				}
			default:
				first[h.Seq] = p
			}
		})
		if again != 4 {
			t.Errorf("%d retransmissions, want 4", again)
		}
	},
}
