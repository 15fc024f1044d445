package soft

import (
	"testing"
	"time"
)

// accounts checks the counters of two devices that have had nothing to do with others: what
// one has sent the other has received, to the byte, unless a buffer was full, and nothing else was counted.
// The payload that x has sent took so many bytes.
func accounts(t *testing.T, x, y *Device, payload uint64) {
	t.Helper()
	type books struct{ sent, rcvd, sentPkts, rcvdPkts uint64 }
	var a, b State
	read := func(s *State) books {
		return books{s.Counter("sent_bytes"), s.Counter("rcvd_bytes"), s.Counter("sent_pkts"), s.Counter("rcvd_pkts")}
	}
	for until := time.Now().Add(patience); ; time.Sleep(time.Millisecond) { // the last are under way
		a, b = x.State(), y.State()
		if m, n := read(&a), read(&b); m == (books{n.rcvd, n.sent, n.rcvdPkts, n.sentPkts}) {
			break
		} else if a.RecvOverrun+b.RecvOverrun > 0 {
			t.Log("a buffer was full: the books need not agree")
			return
		} else if time.Now().After(until) {
			t.Fatalf("the books do not agree: %+v and %+v", m, n)
		}
	}
	if a.QueuePairs != 1 || b.QueuePairs != 1 || !a.Addr.IsLoopback() || a.Addr == b.Addr || a.Gone || b.Gone {
		t.Errorf("%+v, %+v", a, b)
	}
	// Each packet has a header and a checksum of 16 bytes together at least. A machine that is busy may be so
	// late with an acknowledgement that what was sent is sent again.
	again := a.Counter("ack_timeouts")
	if n := a.Counter("sent_bytes"); n < payload+16*a.Counter("sent_pkts") || n > payload+payload/8+100*a.Counter("sent_pkts") && again == 0 {
		t.Errorf("%d bytes were sent in %d packets for a payload of %d; no acknowledgement came in time %d times", n, a.Counter("sent_pkts"), payload, again)
	}
	for _, s := range []*State{&a, &b} {
		pkts := s.Counter("sent_pkts")
		if n := s.Counter("send_calls"); n == 0 || n > pkts {
			t.Errorf("%d packets in %d calls", pkts, n)
		}
		if n := s.Counter("rcvd_messages"); n == 0 || n > s.Counter("rcvd_pkts") || !s.Together && n != s.Counter("rcvd_pkts") {
			t.Errorf("%d packets came in %d messages, put together: %v", s.Counter("rcvd_pkts"), n, s.Together)
		}
		// That of long messages is a burst of several packets.
		if n := s.Counter("sent_bursts"); n > pkts/2 || !s.Bursts && n > 0 {
			t.Errorf("%d bursts of %d packets", n, pkts)
		}
		for _, c := range s.Counters {
			switch c.Name {
			case "rcvd_too_long", "receive_errors", "dropped_mads", "gso_ended", "link_downed", "send_refused", "send_too_long", "send_unreachable", "send_no_memory", "send_other", "bad_syndrome", "send_err":
				if c.Value != 0 {
					t.Errorf("%d of %s", c.Value, c.Name)
				}
			}
			if len(c.Name) > 5 && c.Name[:5] == "drop_" && c.Value != 0 {
				t.Errorf("%d of %s", c.Value, c.Name)
			}
		}
	}
	if n := a.Counter("sent_bursts"); a.Bursts && n == 0 {
		t.Error("no burst was sent")
	}
}
