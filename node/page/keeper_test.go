package page

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/node/page/hour"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/wire"
)

// TestKeeperHistory: the hour is told with the wall clock's time of its end, which lies
// at most a slot ahead, and of one port where one is asked for.
func TestKeeperHistory(t *testing.T) {
	k := NewKeeper(nil)
	k.begun = k.begun.Add(-3 * hour.SlotLength) // as if it ran for as long
	one, other := netip.MustParseAddrPort("10.0.0.2:4000"), netip.MustParseAddrPort("10.0.0.2:4001")
	if !k.follow([]rds.Notice{{Endpoint: one, Congested: true}, {Endpoint: other, Local: true, Congested: true}}) {
		t.Error("follow does not say that a port became congested")
	}
	k.begun = k.begun.Add(-hour.SlotLength) // a slot later
	if k.follow([]rds.Notice{{Endpoint: other, Local: true}}) {
		t.Error("follow says that a port became congested when one was cleared")
	}

	before := time.Now()
	all := k.History(netip.AddrPort{})
	if end := time.Unix(0, all.GetEndUnixNs()); end.Before(before) || end.After(time.Now().Add(hour.SlotLength)) {
		t.Errorf("the newest slot ends %v from now, a slot is %v long", end.Sub(before), hour.SlotLength)
	}
	if kept := time.Duration(all.GetKeptNs()); kept < 4*hour.SlotLength || kept > 5*hour.SlotLength {
		t.Errorf("%v of the hour are kept, after four slots of %v", kept, hour.SlotLength)
	}
	if time.Duration(all.GetSlotNs()) != hour.SlotLength || all.GetSlots() != hour.Slots {
		t.Errorf("%d slots of %v", all.GetSlots(), time.Duration(all.GetSlotNs()))
	}
	if all.GetOthers().GetCongested() || all.GetOthers().GetCongestedPorts() != 0 {
		t.Errorf("others are congested: %v", all.GetOthers())
	}
	for _, want := range []netip.AddrPort{one, other} {
		list := k.History(want).GetPort()
		if len(list) != 1 || list[0].GetEndpoint().GetPort() != uint32(want.Port()) ||
			list[0].GetCongested() != (want == one) || list[0].GetLocal() != (want == other) || list[0].GetTimes() != 1 {
			t.Errorf("the history of %v alone: %v", want, list)
		}
	}
	if n := len(all.GetPort()); n != 2 {
		t.Errorf("%d ports in the whole history, want 2", n)
	}
}

// TestKeeperReadersOfOthers: of what the daemon of another node says of a congested port's
// reader as many senders are kept as the hour has room for.
func TestKeeperReadersOfOthers(t *testing.T) {
	for _, n := range []int{0, 1, hour.MaxCulprits, hour.MaxCulprits + 1} {
		c := &wire.Reader{UID: 7, PID: 70}
		for i := range n {
			c.Fillers = append(c.Fillers, wire.Filler{Source: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.3"), uint16(i)), Datagrams: uint32(i), Bytes: uint64(10 * i)})
		}
		r := readerOf(datagram.ReaderThere(c, hour.MaxCulprits))
		if r.UID != 7 || r.PID != 70 || len(r.Culprits) != min(n, hour.MaxCulprits) {
			t.Errorf("of %d senders: %+v", n, r)
		}
		for i, x := range r.Culprits {
			if x.Source.Port() != uint16(i) || x.Datagrams != uint64(i) || x.Bytes != uint64(10*i) {
				t.Errorf("sender %d of %d: %+v", i, n, x)
			}
		}
	}
}

// TestKeeperLooks: a look is due settleEvery after the last, or settleSoon after the first that
// asked since, however many ask behind it; and after one that took long not before it has
// rested for settleShare times as long.
func TestKeeperLooks(t *testing.T) {
	const ms = time.Millisecond
	for _, x := range []struct {
		what  string
		took  time.Duration   // of the look before
		asked []time.Duration // since
		want  time.Duration
	}{
		{"nobody asks", 0, nil, settleEvery},
		{"nobody asks after a slow one", settleEvery / 10, nil, 10 * settleEvery},
		{"one asks", 0, []time.Duration{0}, settleSoon},
		{"one asks later", 0, []time.Duration{300 * ms}, 300*ms + settleSoon},
		{"many ask", 0, []time.Duration{0, 1, settleSoon / 2, settleSoon - 1}, settleSoon},
		{"shortly before it is due", 0, []time.Duration{settleEvery - 1}, settleEvery - 1 + settleSoon},
		{"one asks after a slow one", 30 * ms, []time.Duration{0}, settleShare * 30 * ms},
		{"one asks after one of a busy machine", 3 * time.Second, []time.Duration{0}, settleMost},
		{"after its rest", 30 * ms, []time.Duration{settleShare * 30 * ms}, settleShare*30*ms + settleSoon},
	} {
		t.Run(x.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLookTimes()
				defer l.timer.Stop()
				for range 2 { // the second as the first
					l.done(x.took)
					begun := time.Now()
					for _, at := range x.asked {
						time.Sleep(at - time.Since(begun))
						l.hurry()
					}
					<-l.timer.C
					if got := time.Since(begun); got != x.want {
						t.Errorf("looks after %v, want %v", got, x.want)
					}
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		l := newLookTimes()
		<-l.timer.C
		if got := time.Since(begun); got != settleEvery {
			t.Errorf("the first look is after %v, want %v", got, settleEvery)
		}
	})
}
