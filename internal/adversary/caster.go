package adversary

import (
	"errors"
	"fmt"
	"math/rand"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/rdsd/rdsd/roce"
	"github.com/rdsd/rdsd/roce/cm"
)

// rocePort is the UDP port of RoCEv2, at both ends.
const rocePort = 4791

// Caster is a node that speaks RoCEv2 packet by packet, over a UDP socket. Its connection
// manager keeps to the protocol where it is asked to; what is sent beside does not have to.
type Caster struct {
	*net.UDPConn
	From, To netip.AddrPort
	// Mute keeps what the connection manager says from the wire; it is called with each
	// message, and returns whether it is sent. It is set before Dial.
	Mute func(mad []byte) bool

	flow  *roce.Flow
	begun time.Time

	mu sync.Mutex // guards the fields below
	cm *cm.Manager
	up map[*cm.Conn]chan bool
}

// Cast opens the socket of an address.
func (s *Stage) Cast(from netip.Addr) (*Caster, error) {
	c := &Caster{From: netip.AddrPortFrom(from, rocePort), To: netip.AddrPortFrom(s.Daemon, rocePort), begun: time.Now(), up: map[*cm.Conn]chan bool{}}
	var err error
	if c.UDPConn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(c.From)); err != nil {
		return nil, err
	}
	keep(s, c.UDPConn)
	if c.flow, err = roce.NewFlow(c.From, c.To); err != nil {
		return nil, err
	}
	c.cm, err = cm.New(cm.Config{Local: from}, (*casterEnv)(c), rand.New(rand.NewSource(s.Int64())))
	return c, err
}

// Packet sends a packet with a right checksum.
func (c *Caster) Packet(p *roce.Packet) error {
	b := p.Append(nil)
	return c.Raw(roce.AppendICRC(b, c.flow.ICRC(0, b)))
}

// Raw sends bytes.
func (c *Caster) Raw(b []byte) error {
	_, err := c.WriteToUDPAddrPort(b, c.To)
	return err
}

// MAD sends a message of the connection manager, of cm.MADLen bytes.
func (c *Caster) MAD(mad []byte) error {
	return c.Packet(&roce.Packet{Op: roce.DatagramSendOnly, PKey: roce.DefaultPKey, Dest: 1, Source: 1, QKey: 0x80010000, Payload: mad})
}

// Listen takes in what comes, until the stage is over or the socket closed: messages of the connection manager, and
// packets for got, which is called on a goroutine of its own.
func (c *Caster) Listen(s *Stage, got func(p *roce.Packet)) {
	s.Go(func() {
		b := make([]byte, 64<<10)
		for !s.Over() {
			c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
			n, from, err := c.ReadFromUDPAddrPort(b)
			c.mu.Lock()
			c.cm.Tick(time.Since(c.begun))
			c.mu.Unlock()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			var p roce.Packet
			if err != nil || p.Parse(b[:n]) != nil {
				continue
			}
			if p.Op != roce.DatagramSendOnly {
				got(&p)
				continue
			}
			c.mu.Lock()
			c.cm.Receive(time.Since(c.begun), from, p.Payload)
			c.mu.Unlock()
		}
	})
}

// Ask asks for a connection of queue pair qpn, showing private. The answer comes where Listen
// takes it in.
func (c *Caster) Ask(s *Stage, port uint16, qpn uint32, private []byte) (con *cm.Conn, answer <-chan bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	con, err = c.cm.Dial(time.Since(c.begun), c.From, netip.AddrPortFrom(c.To.Addr(), port),
		cm.Param{QPN: qpn, RecvPSN: roce.PSN(s.Uint32() & 0xffffff), MTU: 1024, Retry: 7, RNRRetry: 7, Ack: 19, Private: private})
	ch := make(chan bool, 1)
	if err == nil {
		c.up[con] = ch
	}
	return con, ch, err
}

// Dial is Ask, and waits for the answer, at most a moment.
func (c *Caster) Dial(s *Stage, port uint16, qpn uint32, private []byte) (*cm.Conn, error) {
	con, answer, err := c.Ask(s, port, qpn, private)
	if err != nil {
		return nil, err
	}
	select {
	case ok := <-answer:
		if ok {
			return con, nil
		}
		return nil, errEnded
	case <-time.After(500 * time.Millisecond):
	case <-s.Ctx.Done():
	}
	return nil, fmt.Errorf("no answer: %w", errEnded)
}

// casterEnv is a Caster's cm.Env.
type casterEnv Caster

// Send implements cm.Env.
func (e *casterEnv) Send(_ netip.AddrPort, mad []byte) {
	if e.Mute == nil || e.Mute(mad) {
		_ = (*Caster)(e).MAD(mad) // what cannot be sent is lost, as elsewhere
	}
}

// Charge implements cm.Env.
func (e *casterEnv) Charge(netip.Addr) bool { return true }

// Refund implements cm.Env.
func (e *casterEnv) Refund(netip.Addr) {}

// Asked implements cm.Env.
func (e *casterEnv) Asked(*cm.Conn) {}

// Connected implements cm.Env.
func (e *casterEnv) Connected(c *cm.Conn) { e.answered(c, true) }

// Refused implements cm.Env.
func (e *casterEnv) Refused(c *cm.Conn, _ cm.Reason, _ []byte) { e.answered(c, false) }

// Disconnected implements cm.Env.
func (e *casterEnv) Disconnected(*cm.Conn, error) {}

// Released implements cm.Env.
func (e *casterEnv) Released(c *cm.Conn) { delete(e.up, c) }

func (e *casterEnv) answered(c *cm.Conn, ok bool) {
	if ch := e.up[c]; ch != nil {
		select {
		case ch <- ok:
		default:
		}
	}
}
