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
	client := a.Dial(rdsd.WithFrontEnd(rdsd.GRPC))
	ctx := within(t, 30*time.Second)
	from, err := client.Bind(ctx, a.AddrPort(4830), rdsd.WithOutcomes())
	if err != nil {
		t.Fatal(err)
	}
	reader := b.Dial(rdsd.WithFrontEnd(rdsd.GRPC))
	stopped, err := reader.Bind(ctx, b.AddrPort(4831), rdsd.WithRecvBuffer(4096), rdsd.WithRecvWindow(1, 1))
	if err != nil {
		t.Fatal(err)
	}
	reads, err := reader.Bind(ctx, b.AddrPort(4832))
	if err != nil {
		t.Fatal(err)
	}

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
	if cancelled == 0 || r.Cancelled != cancelled {
		t.Errorf("cancelled %+v, %d outcomes say so", r, cancelled)
	}
	st, err := client.Admin().Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range st.Budgets {
		if u.Name == "memory_waiting" && u.Used != 0 {
			t.Errorf("left in the account: %+v", u)
		}
	}
}
