package demo

import (
	"fmt"
	"io"
	"time"

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

// DiskAccount is what became of the requests of the application on the volume.
type DiskAccount struct {
	Writes    uint64 `json:"writes"`
	Reads     uint64 `json:"reads"`
	Wrong     uint64 `json:"wrong"`  // reads of something else than was written last
	Failed    uint64 `json:"failed"` // requests that ended with an error
	Failovers uint64 `json:"failovers"`
	LongestNs int64  `json:"longest_ns"` // of a request
	Verified  int    `json:"verified"`   // blocks read at the end
	Blocks    int    `json:"blocks"`     // of the volume
}

// Summary is the end of a demonstration.
type Summary struct {
	Flows     []Account   `json:"flows"`
	Volume    DiskAccount `json:"volume"`
	Congested uint64      `json:"congested"` // times a port congested
	Cleared   uint64      `json:"cleared"`
	Cuts      int         `json:"cuts"`
}

// AddsUp reports whether every datagram sent has one outcome, every one
// delivered was read once and in order, and every block of the volume holds what
// was written last.
func (s Summary) AddsUp() bool {
	return s.datagramsAddUp() && s.volumeIsRight()
}

func (s Summary) volumeIsRight() bool {
	v := s.Volume
	return v.Wrong == 0 && v.Failed == 0 && v.Blocks > 0 && v.Verified == v.Blocks
}

func (s Summary) datagramsAddUp() bool {
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
	if s.datagramsAddUp() {
		fmt.Fprintf(w, "%d datagrams, every one accounted for: sent = delivered + cancelled + failed + unknown, each read once, in order\n", total)
	} else {
		fmt.Fprintf(w, "the account of %d datagrams does NOT add up\n", total)
	}
	v := s.Volume
	told := fmt.Sprintf("the volume: %d writes, %d reads, %d moved to the other path, the longest request took %v; ", v.Writes, v.Reads, v.Failovers, time.Duration(v.LongestNs).Round(100*time.Microsecond))
	if s.volumeIsRight() {
		fmt.Fprintf(w, "%severy block holds what was written last (%d read at the end)\n", told, v.Verified)
	} else {
		fmt.Fprintf(w, "%s%d of %d blocks read at the end, %d reads were WRONG, %d requests FAILED\n", told, v.Verified, v.Blocks, v.Wrong, v.Failed)
	}
}

func times(n uint64) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}
