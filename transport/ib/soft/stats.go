package soft

import (
	"net/netip"
	"reflect"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/roce"
)

// Stats are a device's counters since it was opened. Those of packets are roce.Counters, those of
// connections cm.Stats.
type Stats struct {
	SentBytes     uint64 `name:"sent_bytes" help:"bytes sent, without the headers of UDP and IP"`
	RcvdBytes     uint64 `name:"rcvd_bytes" help:"bytes received, likewise"`
	SendCalls     uint64 `name:"send_calls" help:"system calls that sent"`
	SentBursts    uint64 `name:"sent_bursts" help:"bursts of more than one packet that the kernel was given to cut"`
	RcvdMessages  uint64 `name:"rcvd_messages" help:"messages received: packets that the kernel has put together are one"`
	SendFull      uint64 `name:"send_full" help:"times that the socket took nothing more for a while"`
	RcvdTooLong   uint64 `name:"rcvd_too_long" help:"messages longer than what carries packets of RoCE"`
	ReceiveErrors uint64 `name:"receive_errors" help:"errors that receiving met"`
	DroppedMADs   uint64 `name:"dropped_mads" help:"messages of the connection manager that there was no room for"`
	GSOEnded      uint64 `name:"gso_ended" help:"times that bursts were given up, because they did not arrive at a peer or could not be sent"`
	Forgotten     uint64 `name:"asks_forgotten" help:"requests to connect that were left without an answer because they had no turn"`
	LinkDowned    uint64 `name:"link_downed" help:"times that the address was taken from the machine"`

	// Packets that could not be sent.
	SendRefused     uint64 `name:"send_refused" help:"messages refused by a rule of the firewall (EPERM)"`
	SendTooLong     uint64 `name:"send_too_long" help:"messages too long for the interface (EMSGSIZE)"`
	SendUnreachable uint64 `name:"send_unreachable" help:"messages for a peer that there is no way to (ENETUNREACH and the like)"`
	SendNoMemory    uint64 `name:"send_no_memory" help:"messages that the system had no memory for (ENOBUFS)"`
	SendOther       uint64 `name:"send_other" help:"messages that could not be sent for another reason"`
}

// noteSend counts an error of sending.
func (s *Stats) noteSend(err error) {
	switch err {
	case unix.EPERM, unix.EACCES:
		s.SendRefused++
	case unix.EMSGSIZE:
		s.SendTooLong++
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN, unix.EHOSTDOWN, unix.ECONNREFUSED, unix.EADDRNOTAVAIL:
		s.SendUnreachable++
	case unix.ENOBUFS, unix.ENOMEM:
		s.SendNoMemory++
	default:
		s.SendOther++
	}
}

// addSends adds what was counted while sending.
func (s *Stats) addSends(o *Stats) {
	s.SendRefused += o.SendRefused
	s.SendTooLong += o.SendTooLong
	s.SendUnreachable += o.SendUnreachable
	s.SendNoMemory += o.SendNoMemory
	s.SendOther += o.SendOther
}

// Counter is one number that only grows.
type Counter struct {
	Name, Help string
	Value      uint64
}

// State is what an operator may want to know of a device.
type State struct {
	Addr       netip.Addr
	Interface  string
	MTU        int  // of new connections
	Gone       bool // the address is not this machine's now
	Bursts     bool // the kernel cuts bursts (UDP_SEGMENT)
	Together   bool // it puts packets together (UDP_GRO)
	QueuePairs int
	Keys       int // by which peers may write memory now
	// RecvBuffer is how many bytes of packets wait at most for the reactor (net.core.rmem_max
	// bounds it), and RecvOverrun how many packets found it full.
	RecvBuffer  int
	RecvOverrun uint64
	Counters    []Counter // under the names of rxe's where it has one
}

// State is that of now.
func (d *Device) State() State {
	size, overrun := d.sock.buffer()
	d.mu.Lock()
	s := State{
		Addr: d.cfg.Addr, Interface: d.port.netdev, MTU: d.port.mtu, Gone: d.gone,
		Bursts: d.out.gso, Together: d.sock.gro, QueuePairs: len(d.qps), RecvBuffer: size, RecvOverrun: uint64(overrun),
	}
	cores, connections, own, drops := d.dev.Counters(), d.cm.Stats(), d.stats, d.dev.Drops()
	d.mu.Unlock()
	s.Keys = d.Keys()
	s.Counters = list(s.Counters, &cores)
	s.Counters = list(s.Counters, &connections)
	s.Counters = list(s.Counters, &own)
	for why, n := range drops {
		name := roce.DropReason(why).String()
		s.Counters = append(s.Counters, Counter{"drop_" + name, "packets that were not taken: " + name, n})
	}
	return s
}

// Keys is how many keys open memory to peers now.
func (d *Device) Keys() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for o := range d.domains {
		n += o.mem.Len()
	}
	return n
}

// Counter is the value of the counter of that name, or 0.
func (s *State) Counter(name string) uint64 {
	for i := range s.Counters {
		if s.Counters[i].Name == name {
			return s.Counters[i].Value
		}
	}
	return 0
}

// list appends the counters of a struct, all of whose fields are.
func list[T any](to []Counter, counters *T) []Counter {
	v := reflect.ValueOf(counters).Elem()
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		to = append(to, Counter{tag.Get("name"), tag.Get("help"), v.Field(i).Uint()})
	}
	return to
}
