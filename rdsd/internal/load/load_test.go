package load

import (
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func goodConfig() Config {
	return Config{Mode: RequestAck, Size: 100, AckSize: 64, Tasks: 1, Depth: 1}
}

func TestValidate(t *testing.T) {
	c := goodConfig()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Config){
		"mode":     func(c *Config) { c.Mode = "both" },
		"size 31":  func(c *Config) { c.Size = 31 },
		"ack size": func(c *Config) { c.AckSize = 2 << 20 },
		"tasks 0":  func(c *Config) { c.Tasks = 0 },
		"depth -1": func(c *Config) { c.Depth = -1 },
		"rate":     func(c *Config) { c.Rate = -1 },
		"rate NaN": func(c *Config) { c.Rate = math.NaN() },
		"duration": func(c *Config) { c.Duration = -1 },
	} {
		c := goodConfig()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want something about %q", err, want)
		}
	}
}

func request(seq uint64, size int) []byte {
	b := make([]byte, size)
	fill(b, seq)
	header{kind: kindRequest, seq: seq, sentNs: 42}.put(b, true)
	return b
}

// TestResponderChecks: contents and order, for each sender apart.
func TestResponderChecks(t *testing.T) {
	r := &Responder{ackSize: 64, next: map[netip.AddrPort]uint64{}}
	one, two := netip.MustParseAddrPort("10.0.0.1:9"), netip.MustParseAddrPort("10.0.0.1:10")
	take := func(from netip.AddrPort, p []byte) (header, bool) {
		a, ok := r.take(rdsd.Datagram{Addr: from, Payload: p})
		if !ok {
			return header{}, false
		}
		h, intact, ok := parse(a.Payload)
		if !ok || !intact || len(a.Payload) != 64 || a.Addr != from {
			t.Fatalf("answer %+v is none", a)
		}
		return h, true
	}
	for seq := range uint64(3) {
		for _, from := range []netip.AddrPort{one, two} {
			if h, ok := take(from, request(seq, 200)); !ok || h.flags != 0 || h.seq != seq || h.sentNs != 42 || h.kind != kindAck {
				t.Errorf("answer to %d: %+v, %v", seq, h, ok)
			}
		}
	}
	flipped := request(3, 200)
	flipped[150] ^= 1
	if h, _ := take(one, flipped); h.flags != flagDamaged {
		t.Error("a flipped bit was not seen")
	}
	if h, _ := take(one, request(5, 200)); h.flags != flagDamaged {
		t.Error("a missing datagram was not seen")
	}
	if h, _ := take(one, request(5, 200)); h.flags != flagDamaged {
		t.Error("a doubled datagram was not seen")
	}
	if h, _ := take(one, request(0, 200)); h.flags != 0 {
		t.Error("a new run from the same port was refused")
	}
	late := netip.MustParseAddrPort("10.0.0.3:1")
	if h, _ := take(late, request(7, 200)); h.flags != 0 {
		t.Error("a run that had begun before was refused")
	}
	if h, _ := take(late, request(9, 200)); h.flags != flagDamaged {
		t.Error("a missing datagram of a run that had begun before was not seen")
	}
	for _, foreign := range [][]byte{nil, []byte("hello"), make([]byte, 100)} {
		if _, ok := take(two, foreign); ok {
			t.Errorf("%q was answered", foreign)
		}
	}
	oneWay := make([]byte, 32)
	header{kind: kindOneWay, seq: 3}.put(oneWay, false)
	if _, ok := take(two, oneWay); ok {
		t.Error("a one-way datagram was answered")
	}
	if s := r.seen; s.Received != 13 || s.Damaged != 4 || s.Foreign != 3 {
		t.Errorf("seen %+v", s)
	}
}

func TestMeter(t *testing.T) {
	m := newMeter(time.Now())
	m.sent(10)
	for i := range 8 {
		m.done(1000, time.Duration(i+1)*time.Millisecond)
	}
	m.failed("no such port")
	if r := m.interval(); r.Sent != 10 || r.Done != 8 || r.Failed != 1 || r.Bytes != 8000 || r.Final {
		t.Errorf("interval %+v", r)
	}
	m.damaged()
	r := m.total()
	if !r.Final || r.Sent != 10 || r.Done != 8 || r.Missing != 1 || r.Damaged != 1 || r.Reasons["no such port"] != 1 {
		t.Errorf("total %+v", r)
	}
	if p50 := time.Duration(r.P50); p50 < 3900*time.Microsecond || p50 > 4100*time.Microsecond {
		t.Errorf("p50 of 1 to 8 ms is %v", p50)
	}
}

// FuzzParse: any bytes.
func FuzzParse(f *testing.F) {
	f.Add(request(7, 64))
	f.Add([]byte("rdsL"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := &Responder{ackSize: 64, next: map[netip.AddrPort]uint64{}}
		r.take(rdsd.Datagram{Payload: b})
		if h, intact, ok := parse(b); ok && intact && b[6] != 0 {
			again := append([]byte(nil), b...)
			h.put(again, true)
			if h2, intact, _ := parse(again); !intact || h2 != h {
				t.Errorf("%+v became %+v", h, h2)
			}
		}
	})
}
