package rdsd_test

import (
	"context"
	"net/netip"
	"os"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

// portHistory is what a daemon kept of a port; nil: nothing.
func portHistory(ctx context.Context, t *testing.T, c *rdsd.Client, at netip.AddrPort) *rdsdv1.PortHistory {
	t.Helper()
	e := &rdsdv1.Endpoint{}
	e.SetAddress(at.Addr().AsSlice())
	e.SetPort(uint32(at.Port()))
	r := &rdsdv1.GetCongestionHistoryRequest{}
	r.SetEndpoint(e)
	h, err := c.AdminService().GetCongestionHistory(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	if len(h.GetPort()) == 0 {
		return nil
	}
	return h.GetPort()[0]
}

// TestHourOfCongestion: both daemons keep how long a port was congested, the one where it
// is read also by whom and of whom, although nobody has looked meanwhile, and it stays
// when the port is clear.
func TestHourOfCongestion(t *testing.T) {
	near, far := rdsdtest.Pair(t)
	ctx := within(t, 40*time.Second)
	nearClient, farClient := near.Dial(), far.Dial()
	to, err := farClient.Bind(ctx, netip.AddrPortFrom(far.Addr, 4860), rdsd.WithRecvBuffer(4096), rdsd.WithRecvWindow(1, 1))
	if err != nil {
		t.Fatal(err)
	}
	from, err := nearClient.Bind(ctx, netip.AddrPortFrom(near.Addr, 4861))
	if err != nil {
		t.Fatal(err)
	}
	if portHistory(ctx, t, farClient, to.LocalAddr()) != nil {
		t.Error("a port that was never congested has an hour")
	}
	begun := time.Now()
	fillPort(ctx, t, from, to.LocalAddr())
	for {
		h := portHistory(ctx, t, farClient, to.LocalAddr())
		if h != nil && h.GetCongested() && h.GetReaderPid() != 0 {
			if !h.GetLocal() || int(h.GetReaderPid()) != os.Getpid() || h.GetReaderProgram() == "" || len(h.GetCulprit()) != 1 ||
				h.GetCulprit()[0].GetSource().GetPort() != uint32(from.LocalAddr().Port()) || h.GetCongestedNs() == 0 || h.GetTimes() == 0 {
				t.Errorf("%v", h)
			}
			break
		}
		if time.Sleep(20 * time.Millisecond); ctx.Err() != nil {
			t.Fatalf("the daemon of the reader has %v", h)
		}
	}
	if h := portHistory(ctx, t, nearClient, to.LocalAddr()); h == nil || h.GetLocal() || !h.GetCongested() {
		t.Errorf("the daemon of the sender has %v", h)
	}
	seen := time.Now() // both have noted it
	time.Sleep(100 * time.Millisecond)
	least := time.Since(seen)
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	lasted := time.Since(begun)
	for _, c := range []*rdsd.Client{farClient, nearClient} {
		h := portHistory(ctx, t, c, to.LocalAddr())
		for h != nil && h.GetCongested() {
			if time.Sleep(20 * time.Millisecond); ctx.Err() != nil {
				t.Fatalf("it is still congested: %v", h)
			}
			h = portHistory(ctx, t, c, to.LocalAddr())
		}
		if h == nil {
			t.Fatal("the hour is forgotten when the port is clear")
		}
		var ms uint64
		for _, n := range h.GetSlotMs() {
			ms += uint64(n)
		}
		// Its end is noted a moment later.
		if got := time.Duration(h.GetCongestedNs()); got > lasted+2*time.Second || got < least || ms < uint64(got/time.Millisecond)-2 {
			t.Errorf("congested for %v, %d ms in slots; it lasted %v: %v", got, ms, lasted, h)
		}
	}
}
