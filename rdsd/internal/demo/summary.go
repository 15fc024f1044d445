package demo

import (
	"fmt"
	"io"

	"github.com/jedib0t/go-pretty/v6/table"
)

// Account is what became of the datagrams of one flow.
type Account struct {
	Flow      string `json:"flow"`
	Sent      uint64 `json:"sent"`
	Delivered uint64 `json:"delivered"`
	Cancelled uint64 `json:"cancelled"`
	Failed    uint64 `json:"failed"`
	Unknown   uint64 `json:"unknown"`
	Read      uint64 `json:"read"`
	Disorder  uint64 `json:"disorder"` // read out of order or twice
	Refused   uint64 `json:"refused"`  // sends that first met ENOBUFS or EAGAIN
}

// Summary is the end of a demonstration.
type Summary struct {
	Flows     []Account `json:"flows"`
	Congested uint64    `json:"congested"` // times a port congested
	Cleared   uint64    `json:"cleared"`
	Cuts      int       `json:"cuts"`
}

// AddsUp reports whether every datagram sent has one outcome, and every one
// delivered was read once and in order.
func (s Summary) AddsUp() bool {
	for _, f := range s.Flows {
		if f.Sent != f.Delivered+f.Cancelled+f.Failed+f.Unknown || f.Read < f.Delivered || f.Read > f.Delivered+f.Unknown || f.Disorder > 0 {
			return false
		}
	}
	return len(s.Flows) > 0
}

func (s *show) summary() Summary {
	sum := Summary{}
	for _, f := range s.all {
		sum.Flows = append(sum.Flows, Account{
			Flow: f.what, Sent: f.accepted.Load(), Delivered: f.delivered.Load(), Cancelled: f.cancelled.Load(),
			Failed: f.failed.Load(), Unknown: f.unknown.Load(), Read: f.received.Load(), Disorder: f.disorder.Load(), Refused: f.refused.Load(),
		})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sum.Congested, sum.Cleared, sum.Cuts = s.congests, s.clears, s.cuts
	return sum
}

func (s Summary) write(w io.Writer) {
	tw := newTable()
	tw.AppendHeader(table.Row{"flow", "sent", "delivered", "cancelled", "failed", "unknown", "read", "out of order"})
	var total uint64
	for _, f := range s.Flows {
		total += f.Sent
		tw.AppendRow(table.Row{f.Flow, f.Sent, f.Delivered, f.Cancelled, f.Failed, f.Unknown, f.Read, f.Disorder})
	}
	fmt.Fprintf(w, "\nSummary\n%s\n", tw.Render())
	fmt.Fprintf(w, "a port congested %s and cleared %s; the link was cut %s and came back\n", times(s.Congested), times(s.Cleared), times(uint64(s.Cuts)))
	if s.AddsUp() {
		fmt.Fprintf(w, "%d datagrams, every one accounted for: sent = delivered + cancelled + failed + unknown, each read once, in order\n", total)
	} else {
		fmt.Fprintf(w, "the account of %d datagrams does NOT add up\n", total)
	}
}

func times(n uint64) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}
