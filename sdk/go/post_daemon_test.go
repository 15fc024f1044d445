package rdsd_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

// Sends by credit to a reader that does not read: they come to wait, other destinations go
// on, a cancel ends what waits and counts it, every accepted datagram has one outcome, and
// nothing is left in the daemon's account of sends that wait.
func TestCreditMeetsCongestion(t *testing.T) {
	a, b := rdsdtest.Pair(t)
	c := congestionByCredit{ctx: within(t, 60*time.Second), a: a, b: b, client: a.Dial(rdsd.WithFrontEnd(rdsd.GRPC))}
	// Whether anything is posted before the news of congestion comes is the machine's: again
	// until it is.
	const most = 20
	for n := uint16(1); c.round(t, 4830+2*n) == 0; n++ {
		if n == most {
			t.Fatalf("nothing waited in %d rounds", most)
		}
	}
	st, err := c.client.Admin().Status(c.ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range st.Budgets {
		if u.Name == "memory_waiting" && u.Used != 0 {
			t.Errorf("left in the account: %+v", u)
		}
	}
}

type congestionByCredit struct {
	ctx    context.Context
	a, b   *rdsdtest.Daemon
	client *rdsd.Client
}

func (c *congestionByCredit) bind(t *testing.T, client *rdsd.Client, d *rdsdtest.Daemon, port uint16, opts ...rdsd.BindOption) *rdsd.Socket {
	t.Helper()
	s, err := client.Bind(c.ctx, d.AddrPort(port), opts...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// round returns how many datagrams a cancel ended.
func (c *congestionByCredit) round(t *testing.T, port uint16) uint64 {
	ctx := c.ctx
	reader := c.b.Dial(rdsd.WithFrontEnd(rdsd.GRPC))
	from := c.bind(t, c.client, c.a, port, rdsd.WithOutcomes())
	stopped := c.bind(t, reader, c.b, port, rdsd.WithRecvBuffer(4096), rdsd.WithRecvWindow(1, 1))
	reads := c.bind(t, reader, c.b, port+1)
	defer func() {
		for _, s := range []*rdsd.Socket{from, stopped, reads} {
			s.Close()
		}
	}()
	open := map[uint64]bool{} // accepted, no outcome
	payload := make([]byte, 100)
	for {
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		tag, err := from.SendTag(short, stopped.LocalAddr(), payload)
		cancel()
		if err == nil {
			open[tag] = true
			continue
		}
		if !errors.Is(err, rdserr.ErrTimeout) {
			t.Fatal(err)
		}
		break
	}
	const others = 50
	for range others {
		tag, err := from.SendTag(ctx, reads.LocalAddr(), payload)
		if err != nil {
			t.Fatalf("beside a congested port: %v", err)
		}
		open[tag] = true
	}
	for range others {
		if _, err := reads.Recv(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := from.TrySend(stopped.LocalAddr(), payload); !errors.Is(err, rdserr.ErrCongested) && !errors.Is(err, rdserr.ErrWouldBlock) {
		t.Errorf("a try: %v", err)
	}
	r, err := from.CancelSentTo(ctx, stopped.LocalAddr())
	if err != nil {
		t.Fatal(err)
	}
	if err := from.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	accepted, cancelled := len(open), uint64(0)
	for o, err := range from.Outcomes(ctx) {
		if err != nil {
			t.Fatalf("%d of %d without an outcome: %v", len(open), accepted, err)
		}
		if o.Kind == rdsd.Cancelled {
			cancelled++
		}
		if !open[o.Tag] {
			t.Errorf("%+v of a datagram that had one, or was not accepted", o)
		}
		if delete(open, o.Tag); len(open) == 0 {
			break
		}
	}
	t.Logf("%d accepted, %d cancelled", accepted, cancelled)
	if r.Cancelled != cancelled {
		t.Errorf("cancelled %+v, %d outcomes say so", r, cancelled)
	}
	return cancelled
}

// TestTrainLongerThanADatagram sends small datagrams as fast as it can with a small send
// buffer: together they are more than one may be, and none is refused for that.
func TestTrainLongerThanADatagram(t *testing.T) {
	d := rdsdtest.Start(t, rdsdtest.AddrA, rdsdtest.FreePort(t, rdsdtest.AddrA))
	ctx := within(t, 30*time.Second)
	c := d.Dial(rdsd.WithFrontEnd(rdsd.Rings))
	from, err := c.Bind(ctx, d.AddrPort(0), rdsd.WithSendBuffer(8<<10))
	if err != nil {
		t.Fatal(err)
	}
	to, err := c.Bind(ctx, d.AddrPort(0))
	if err != nil {
		t.Fatal(err)
	}
	const n = 20_000
	go func() {
		p := make([]byte, 1000)
		for range n {
			if from.Send(ctx, to.LocalAddr(), p) != nil {
				return
			}
		}
	}()
	for i := range n {
		if _, err := to.Recv(ctx); err != nil {
			t.Fatalf("%v, after %d of %d datagrams", err, i, n)
		}
	}
}
