package cm

import (
	"math/rand"
	"net/netip"
	"testing"
	"time"
)

// quiet is an Env that does nothing.
type quiet struct{}

func (quiet) Send(netip.AddrPort, []byte)   {}
func (quiet) Charge(netip.Addr) bool        { return false }
func (quiet) Refund(netip.Addr)             {}
func (quiet) Asked(*Conn)                   {}
func (quiet) Connected(*Conn)               {}
func (quiet) Refused(*Conn, Reason, []byte) {}
func (quiet) Disconnected(*Conn, error)     {}
func (quiet) Released(*Conn)                {}

// TestNothingForStrangers: what makes no connection allocates nothing, answered or not.
func TestNothingForStrangers(t *testing.T) {
	local, peer := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	m, err := New(Config{Local: local}, quiet{}, rand.New(rand.NewSource(1)))
	if err == nil {
		err = m.Listen(1234)
	}
	if err != nil {
		t.Fatal(err)
	}
	now := time.Duration(0)
	for name, c := range map[string]struct {
		mad  []byte
		sent uint64
	}{
		"garbage":         {[]byte("garbage"), 0},
		"an end":          {fields{"local": "1", "remote": "2"}.message(t, "DREQ", peer, local), 1},
		"an answer":       {fields{"local": "1", "remote": "2"}.message(t, "REP", peer, local), 1},
		"a confirmation":  {fields{"local": "1", "remote": "2"}.message(t, "RTU", peer, local), 0},
		"no listener":     {fields{"service": "0x01060001"}.message(t, "REQ", peer, local), 1},
		"another address": {fields{"src": "10.0.0.3"}.message(t, "REQ", peer, local), 1},
		"no memory":       {fields{}.message(t, "REQ", peer, local), 0},
	} {
		now += time.Hour // so that a stranger is answered
		was := m.Stats().Sent
		m.Receive(now, netip.AddrPortFrom(peer, 1), c.mad)
		if n := m.Stats().Sent - was; n != c.sent {
			t.Errorf("%s: %d answers, want %d", name, n, c.sent)
		}
		if n := testing.AllocsPerRun(100, func() { m.Receive(now, netip.AddrPortFrom(peer, 1), c.mad) }); n != 0 {
			t.Errorf("%s: %.0f allocations", name, n)
		}
	}
	if m.Conns() != 0 || m.Next() != Never {
		t.Errorf("%d connections", m.Conns())
	}
}
