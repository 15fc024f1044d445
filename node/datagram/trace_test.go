package datagram

import (
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/rds"
)

// TestTraceMemory: what a trace may hold is within what it is charged, the maps at four
// times their entries.
func TestTraceMemory(t *testing.T) {
	holds := traceEvents*unsafe.Sizeof(TraceEvent{}) + traceUnread*unsafe.Sizeof(unreadNode{}) +
		4*traceWaiting*(unsafe.Sizeof(waitingSince{})+8) + 4*traceFrames*(8+8) + 4*traceUnread*(unsafe.Sizeof(unreadOf{})+unsafe.Sizeof(unreadEnds{}))
	if holds > traceBytes {
		t.Errorf("a trace may hold %d bytes and is charged %d", holds, traceBytes)
	}
}

// TestTraceRule: parts that are not given fit anything, and all that are given have to.
func TestTraceRule(t *testing.T) {
	ap := netip.MustParseAddrPort
	src, dst := ap("10.0.0.1:5000"), ap("10.0.0.2:4000")
	port := func(p uint16) netip.AddrPort { return netip.AddrPortFrom(netip.Addr{}, p) }
	either := func(l ...netip.AddrPort) TraceRule { return TraceRule{Either: l} }
	for i, c := range []struct {
		r    TraceRule
		want bool
	}{
		{TraceRule{}, true},
		{TraceRule{Dst: dst}, true}, {TraceRule{Dst: src}, false}, {TraceRule{Src: src}, true}, {TraceRule{Src: dst}, false},
		{TraceRule{Dst: port(4000)}, true}, {TraceRule{Dst: port(5000)}, false},
		{TraceRule{Dst: ap("10.0.0.2:0")}, true}, {TraceRule{Dst: ap("10.0.0.1:0")}, false},
		{either(src), true}, {either(dst), true}, {either(ap("10.0.0.3:0")), false}, {either(port(4000)), true}, {either(port(4001)), false},
		{either(src, port(4000)), true}, {either(src, port(4001)), false}, {TraceRule{Src: src, Either: []netip.AddrPort{port(1)}}, false},
		{either(ap("10.0.0.1:4000")), false}, // the address of one end with the port of the other
	} {
		if got := c.r.fits(src, dst); got != c.want {
			t.Errorf("%d: %+v: %v", i, c.r, got)
		}
	}
}

// begun is a trace of nobody's engine.
func begun(every uint64) *Trace {
	return &Trace{rule: TraceRule{Every: every}, wall: 1000, events: make([]TraceEvent, traceEvents), waiting: map[*conn.Msg]waitingSince{}, frames: map[*conn.Msg]int{}, unread: newUnreadList()}
}

var traceSrc, traceDst = netip.MustParseAddrPort("10.0.0.1:5000"), netip.MustParseAddrPort("10.0.0.2:4000")

func placedAs(socket, nth uint64, count int) *rds.Traced {
	return &rds.Traced{Stage: rds.StagePlaced, Src: traceSrc, Dst: traceDst, Seq: nth + 1, Count: count, At: 5, Socket: socket, Nth: nth}
}

// TestTraceIsBounded: events that nobody takes, datagrams that nobody reads and messages
// that wait for ever have a place up to a number, and are counted beyond it.
func TestTraceIsBounded(t *testing.T) {
	x := begun(1)
	h := &Local{}
	for i := range traceEvents + 10 {
		x.note(h, 7, placedAs(uint64(i%3), uint64(i/3), 1))
	}
	l, dropped := x.Take(nil, traceEvents+10)
	if len(l) != traceEvents || dropped != 10+traceEvents+10-traceUnread {
		t.Errorf("%d events, %d dropped", len(l), dropped)
	}
	for s := range uint64(3) {
		x.note(h, 8, &rds.Traced{Stage: rds.StageDropped, Socket: s})
	}
	if l, _ = x.Take(nil, traceEvents+10); len(l) != traceUnread || len(x.unread.socks) != 0 {
		t.Errorf("%d datagrams of closed sockets were told of, %d sockets are left", len(l), len(x.unread.socks))
	}
	was := dropped
	msgs := make([]conn.Msg, traceWaiting+5)
	for i := range msgs {
		x.note(h, 9, &rds.Traced{Stage: rds.StageWaits, Msg: &msgs[i], Src: traceSrc, Dst: traceDst})
	}
	if _, dropped = x.Take(nil, 1); len(x.waiting) != traceWaiting || dropped != was+5 {
		t.Errorf("%d messages wait, %d more events dropped", len(x.waiting), dropped-was)
	}
	for i := range msgs {
		x.note(h, 10, &rds.Traced{Stage: rds.StageNotAccepted, Msg: &msgs[i], Src: traceSrc, Dst: traceDst, Count: 1})
	}
	if len(x.waiting) != 0 {
		t.Errorf("%d messages wait that have ended", len(x.waiting))
	}
}

// TestTraceTimes: when messages were posted and accepted, which waited and which did not;
// and which datagram of a train is followed, until that one is read.
func TestTraceTimes(t *testing.T) {
	x := begun(2)
	h := &Local{}
	take := func() TraceEvent {
		t.Helper()
		l, _ := x.Take(nil, 10)
		if len(l) != 1 {
			t.Fatalf("%d events: %+v", len(l), l)
		}
		return l[0]
	}
	left := func(m *conn.Msg, seq uint64) *rds.Traced {
		return &rds.Traced{Stage: rds.StageLeft, Msg: m, Src: traceSrc, Dst: traceDst, Seq: seq, Count: 3, At: 50}
	}
	var m conn.Msg
	x.note(h, 60, left(&m, 1)) // not chosen
	x.note(h, 60, left(&m, 2))
	if e := take(); e.Posted != 1050 || e.Accepted != 1050 || e.At != 1060 || e.Member != 1 {
		t.Errorf("%+v", e)
	}
	for _, accepted := range []bool{false, true} {
		x.note(h, 40, &rds.Traced{Stage: rds.StageWaits, Msg: &m, Src: traceSrc, Dst: traceDst, Accepted: accepted})
		x.note(h, 60, left(&m, 4))
		want := time.Duration(1050) // when it came to its connection
		if accepted {
			want = 1040
		}
		if e := take(); e.Posted != 1040 || time.Duration(e.Accepted) != want || e.Member != 2 {
			t.Errorf("accepted when it began to wait: %v: %+v", accepted, e)
		}
		x.note(h, 70, &rds.Traced{Stage: rds.StageDone, Msg: &m, Src: traceSrc, Dst: traceDst, Seq: 4, Count: 3, Outcome: conn.Delivered})
		if e := take(); e.At != 1070 || e.Outcome != conn.Delivered || e.Posted != 0 {
			t.Errorf("%+v", e)
		}
	}
	p := placedAs(1, 3, 3) // numbers 3, 4 and 5 of the socket, sequence 4
	if !x.note(h, 80, p) {
		t.Error("it is not followed")
	}
	if e := take(); e.Received != 1005 || e.At != 1080 || e.Member != 2 {
		t.Errorf("%+v", e)
	}
	for _, before := range []uint64{4, 5} {
		x.note(h, 90, &rds.Traced{Stage: rds.StageRead, Socket: 1, Nth: before})
		x.note(h, 90, &rds.Traced{Stage: rds.StageRead, Socket: 2, Nth: 100})
	}
	if l, _ := x.Take(nil, 10); len(l) != 0 {
		t.Errorf("told as read before it was: %+v", l)
	}
	x.note(h, 95, &rds.Traced{Stage: rds.StageRead, Socket: 1, Nth: 6})
	if e := take(); e.Stage != rds.StageRead || e.At != 1095 || e.Seq != 4 || e.Member != 2 {
		t.Errorf("%+v", e)
	}
}

// TestWallOfZero: of the looks at both clocks the one counts that took least, whenever it
// was: between two reads of a slow one somebody else ran, or the wall clock was set.
func TestWallOfZero(t *testing.T) {
	const zero, begin = int64(1_700_000_000_000_000_000), 500 * time.Second
	for quick := range 4 {
		looks, at := 0, begin
		var step time.Duration
		m := Machine{
			Clock: func() time.Duration { at += step; step = 0; return at },
			Wall: func() time.Time {
				wall, took := time.Unix(0, zero+int64(at)), 400*time.Microsecond // all of it after the look
				if looks == quick {
					took = 2 * time.Microsecond
				}
				looks++
				step = took
				return wall
			},
		}
		if off := m.wallOfZero() - zero; off < -1000 || off > 1000 {
			t.Errorf("look %d of %d is the quick one: wrong by %d ns", quick+1, looks, off)
		}
	}
}

// TestTraceOfJoined: of messages that left in one frame, which is one train to its receiver, the one
// is told of that has the datagram that the receiver tells of.
func TestTraceOfJoined(t *testing.T) {
	for seq := range uint64(24) {
		from, to := begun(1), begun(1)
		h := &Local{}
		to.note(h, 7, &rds.Traced{Stage: rds.StagePlaced, Src: traceSrc, Dst: traceDst, Seq: seq + 1, Count: 6, Bytes: 60})
		for before, count := range map[int]int{0: 1, 1: 2, 3: 3} {
			m := &conn.Msg{}
			of := rds.Traced{Msg: m, Src: traceSrc, Dst: traceDst, Seq: seq + 1, Count: count, Bytes: 10 * count, Before: before, Of: 6}
			left, done := of, of
			left.Stage, left.OfBytes = rds.StageLeft, 60
			done.Stage = rds.StageDone
			from.note(h, 7, &left)
			from.note(h, 8, &done)
			from.note(h, 9, &done) // it had left before the trace began: its own bytes are known
		}
		placed, _ := to.Take(nil, 9)
		told, _ := from.Take(nil, 9)
		if len(placed) != 1 || len(told) != 3 {
			t.Fatalf("sequence %d: its sender tells of %+v, its receiver of %+v", seq+1, told, placed)
		}
		member := placed[0].Member
		own := map[bool]int{true: 10}[member == 0] + map[bool]int{true: 20}[member == 1 || member == 2] + map[bool]int{true: 30}[member > 2]
		for i, bytes := range []int{60, 60, own} {
			if e := told[i]; e.Member != member || e.Count != 6 || e.Bytes != bytes {
				t.Errorf("sequence %d, %d: its sender tells of %+v, its receiver of %+v", seq+1, i, e, placed)
			}
		}
		if len(from.frames) != 0 {
			t.Errorf("%d messages that have ended are remembered", len(from.frames))
		}
	}
}
