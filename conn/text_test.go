package conn

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/rdsd/rdsd/cong"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// Frames as text, one notation for what scripts receive and what they expect:
//
//	data 5000>4000 seq=3 len=100 flags=retrans,ackreq ack=2 credit=1 csum
//	data 5000>4000 train=4 len=100    a train of 4; train=4t: with a table; train=4?: of no form known
//	probe seq=1 npaths=8 gen=7 sportidx hello=INCARNATION/LANES/CREDITLOG2[/CAPS]
//	answer ...        handshake pong; received=N is the payload between two rdsd; late: a kernel's, to a ping of a former link
//	ping 5064 seq=2   pong 5064 seq=2   null seq=2
//	ack ack=5         acknowledgement alone
//	control 0x99      a control message of unknown kind
//	map 4000,4001     delta 4000+,4001-     refuse 3:no-port,4:no-room seq=9
//
// "csum": the checksum is set (and verifies); a received frame may have
// "csum=bad". "self" as incarnation is the one of the Conn under test.

var flagNames = []struct {
	bit  uint8
	name string
}{{wire.FlagCongBitmap, "cong"}, {wire.FlagAckRequired, "ackreq"}, {wire.FlagRetransmitted, "retrans"}, {wire.FlagResume, "resume"}, {wire.FlagControl, "control"}}

var reasonNames = map[wire.Reason]string{wire.ReasonNoPort: "no-port", wire.ReasonNoRoom: "no-room"}

func (w *world) text(f transport.Frame) string {
	var h wire.Header
	if err := h.Parse(f.Raw); err != nil {
		w.t.Fatal(err)
	}
	rdsd := w.c.kind == KindRdsd
	s, flags := "", h.Flags
	switch h.Kind(rdsd) {
	case wire.KindData:
		train, err := wire.ParseTrain(&h.Ext, f.Payload)
		if err != nil {
			w.t.Error(err)
		}
		s = fmt.Sprintf("data %d>%d%s len=%d", h.SPort, h.DPort, trainText(train), h.Len)
	case wire.KindProbe, wire.KindProbeReply:
		s = "probe"
		if h.Kind(rdsd) == wire.KindProbeReply {
			s = "answer"
		}
		x := wire.ParseHandshake(&h.Ext)
		if x.NPaths != 0 {
			s += fmt.Sprintf(" npaths=%d", x.NPaths)
		}
		if x.GenNum != 0 {
			s += fmt.Sprintf(" gen=%d", x.GenNum)
		}
		if x.SportIdx {
			s += " sportidx"
		}
		if len(f.Payload) == receivedLen {
			s += fmt.Sprintf(" received=%d", binary.BigEndian.Uint64(f.Payload))
		} else if len(f.Payload) > 0 {
			w.t.Errorf("a handshake with %d bytes of payload", len(f.Payload))
		}
		if p := x.Hello; p.Version != 0 {
			inc := fmt.Sprint(p.Incarnation)
			if p.Incarnation == w.c.inc {
				inc = "self"
			}
			s += fmt.Sprintf(" hello=%s/%d/%d", inc, p.Lanes, p.CreditLog2)
			if p.Caps != 0 {
				s += fmt.Sprintf("/%d", p.Caps)
			}
		}
	case wire.KindPing:
		s = fmt.Sprintf("ping %d", h.SPort)
	case wire.KindPong:
		s = fmt.Sprintf("pong %d", h.DPort)
	case wire.KindNull:
		s = "null"
	case wire.KindAckOnly:
		s = "ack"
	case wire.KindCongMap:
		flags &^= wire.FlagCongBitmap
		var m cong.Map
		var l []string
		if _, _, err := m.Replace(f.Payload, cong.Ports, func(p uint16, _ bool) { l = append(l, fmt.Sprint(p)) }); err != nil {
			w.t.Fatal(err)
		}
		s = "map " + strings.Join(l, ",")
	case wire.KindControl:
		flags &^= wire.FlagControl
		var l []string
		if h.Ext[0] == wire.CtlCongDelta {
			s = "delta "
			wire.ParsePortStates(f.Payload, func(p wire.PortState) {
				l = append(l, fmt.Sprintf("%d%c", p.Port, map[bool]rune{true: '+', false: '-'}[p.Congested]))
			})
		} else {
			s = "refuse "
			wire.ParseRefusals(f.Payload, func(r wire.Refusal) error {
				l = append(l, fmt.Sprintf("%d:%s", r.Seq, reasonNames[r.Reason]))
				return nil
			})
		}
		s += strings.Join(l, ",")
	}
	if h.Seq != 0 {
		s += fmt.Sprintf(" seq=%d", h.Seq)
	}
	if flags != 0 {
		var l []string
		for _, n := range flagNames {
			if flags&n.bit != 0 {
				l = append(l, n.name)
			}
		}
		s += " flags=" + strings.Join(l, ",")
	}
	if h.Ack != 0 {
		s += fmt.Sprintf(" ack=%d", h.Ack)
	}
	if h.Credit != 0 {
		s += fmt.Sprintf(" credit=%d", h.Credit)
	}
	if h.Csum != 0 {
		s += " csum"
		if !wire.ChecksumOK(f.Raw) {
			w.t.Errorf("wrong checksum in %s", s)
		}
	}
	return s
}

func trainText(t wire.Train) string {
	if t.Plain() {
		return ""
	}
	s := fmt.Sprintf(" train=%d", t.Count)
	if t.Table {
		s += "t"
	}
	if t.Joined {
		s += "j"
	}
	return s
}

// frame reads the notation.
func (w *world) frame(words []string) transport.Frame {
	var h wire.Header
	var payload []byte
	var x wire.Handshake
	kind, words := words[0], words[1:]
	arg := ""
	if len(words) > 0 && !strings.Contains(words[0], "=") && words[0] != "sportidx" && words[0] != "csum" {
		arg, words = words[0], words[1:]
	}
	num := func(s string) uint64 {
		if s == "self" {
			return w.c.inc
		}
		n, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			w.t.Fatalf("%s %v: %v", kind, words, err)
		}
		return n
	}
	list := func() []string {
		if arg == "" {
			return nil
		}
		return strings.Split(arg, ",")
	}
	switch kind {
	case "data":
		a, b, _ := strings.Cut(arg, ">")
		h.SPort, h.DPort = uint16(num(a)), uint16(num(b))
	case "probe":
		h.SPort = wire.PortProbe
	case "answer":
		h.DPort = wire.PortProbe
	case "ping":
		h.SPort = uint16(num(arg))
	case "pong":
		h.DPort = uint16(num(arg))
	case "ack", "null":
	case "map":
		h.Flags = wire.FlagCongBitmap
		var m cong.Map
		for _, p := range list() {
			m.Set(uint16(num(p)), true)
		}
		payload = m.AppendTo(nil)
	case "delta":
		h.Flags, h.Ext[0] = wire.FlagControl, wire.CtlCongDelta
		for _, p := range list() {
			payload = wire.AppendPortStates(payload, []wire.PortState{{Port: uint16(num(p[:len(p)-1])), Congested: strings.HasSuffix(p, "+")}})
		}
	case "control":
		h.Flags, h.Ext[0] = wire.FlagControl, uint8(num(arg))
	case "refuse":
		h.Flags, h.Ext[0] = wire.FlagControl, wire.CtlRefuse
		for _, p := range list() {
			seq, why, _ := strings.Cut(p, ":")
			for r, name := range reasonNames {
				if name == why {
					payload = wire.AppendRefusal(payload, wire.Refusal{Seq: num(seq), Reason: r})
				}
			}
		}
	default:
		w.t.Fatalf("no such frame: %s", kind)
	}
	sum := ""
	for _, word := range words {
		k, v, _ := strings.Cut(word, "=")
		switch k {
		case "seq":
			h.Seq = num(v)
		case "ack":
			h.Ack = num(v)
		case "len":
			payload = make([]byte, num(v))
		case "received":
			payload = binary.BigEndian.AppendUint64(nil, num(v))
		case "credit":
			h.Credit = uint8(num(v))
		case "train":
			h.Ext = wire.Train{Count: int(num(strings.TrimRight(v, "t?"))), Table: strings.HasSuffix(v, "t")}.Ext()
			if strings.HasSuffix(v, "?") {
				h.Ext[3] = 2
			}
		case "flags":
			for _, name := range strings.Split(v, ",") {
				for _, n := range flagNames {
					if n.name == name {
						h.Flags |= n.bit
					}
				}
			}
		case "npaths":
			x.NPaths = uint16(num(v))
		case "gen":
			x.GenNum = uint32(num(v))
		case "sportidx":
			x.SportIdx = true
		case "hello":
			p := strings.Split(v, "/")
			x.Hello = wire.Hello{Version: 1, Incarnation: num(p[0]), Lanes: uint8(num(p[1])), CreditLog2: uint8(num(p[2]))}
			if len(p) > 3 {
				x.Hello.Caps = uint8(num(p[3]))
			}
		case "csum":
			sum = "ok" + v
		default:
			w.t.Fatalf("no such field: %s", word)
		}
	}
	if h.Ext == [wire.ExtLen]byte{} {
		h.Ext = x.Encode()
	}
	h.Len = uint32(len(payload))
	raw := h.Append(nil)
	if sum != "" {
		wire.SetChecksum(raw)
	}
	if sum == "okbad" {
		raw[31] ^= 1
	}
	return transport.Frame{Raw: raw, Payload: payload}
}
