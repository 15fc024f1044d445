package rtrs

import (
	"github.com/rdsd/rdsd/transport"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// What each arrival does to a path in each state, in the order of the arrivals: t it is taken, b it breaks the protocol and ends the
// path, i nobody looks at it. To a client's path a request is an immediate of a kind that it does not know.
var (
	clientFates = map[State]string{
		Reconnecting: "iiiiiiiiiiiiii",
		Connecting:   "btbbtbbbibtttb",
		Connected:    "bbbtttbtittttb",
		Closing:      "iiiiiiiiiiiiii",
		Closed:       "iiiiiiiiiiiiii",
		Dead:         "iiiiiiiiiiiiii",
	}
	serverFates = map[State]string{
		Connecting: "tbbbbbbbbbttbb",
		Fencing:    "bbbbbbbbbbttbb",
		Connected:  "bbtbbbtbtbttbb",
		Closing:    "iiiiiiiiiiiiii",
		Draining:   "iiiiiiiiiiiiii",
		Dead:       "iiiiiiiiiiiiii",
	}
)

// taker is what both ends of a path have in common.
type taker interface {
	State() State
	Received(now time.Duration, conn int, data []byte, imm uint32, hasImm bool) error
	Written(now time.Duration, conn int, w transport.Placed) error
	Invalidated(now time.Duration, conn int, key uint32, filled int) error
}

// bring brings a to p as it is right but for the state: answers to a request in chunk 0, fences of another path.
func bring(p taker, a arrival) error {
	send := func(b []byte) error { return p.Received(0, 0, b, 0, false) }
	notice := func(t rtrswire.Type, errno uint16) error {
		return send(rtrswire.Notice{Type: t, Errno: errno}.Append(nil))
	}
	fence := rtrswire.Fence{Attempt: 1, Path: [16]byte{9}}
	switch a {
	case someInfoReq:
		b, err := rtrswire.AppendInfoReq(nil, "a")
		if err != nil {
			panic(err)
		}
		return send(b)
	case someInfoRsp:
		return send(info(fourChunks, 7))
	case someFence:
		fence.Type = rtrswire.FenceType
		return send(fence.Append(nil))
	case someFenced:
		fence.Type = rtrswire.FencedType
		return send(fence.Append(nil))
	case someRefused:
		return notice(rtrswire.RefusedType, errnoOther)
	case someRest:
		return notice(rtrswire.RestType, 0)
	case someRested:
		return notice(rtrswire.RestedType, 0)
	case someWake:
		return notice(rtrswire.WakeType, 0)
	case someRequest:
		return p.Written(0, 1, transport.Placed{Known: true, N: 12, Imm: uint32(fourChunks.Req(0, 0))})
	case someAnswer:
		return p.Received(0, 1, rtrswire.RKeyRsp{Key: 9}.Append(nil), uint32(rtrswire.Done(0, 0, false)), true)
	case someBeat:
		return p.Written(0, 0, transport.Placed{Known: true, Imm: uint32(rtrswire.ImmHeartbeat)})
	case someBeatAck:
		return p.Written(0, 0, transport.Placed{Known: true, Imm: uint32(rtrswire.ImmHeartbeatAck)})
	case someRevoked:
		return p.Invalidated(0, 1, 5, 0)
	default:
		return notice(0x8fff, 0)
	}
}

// checkFate brings a to p and checks what becomes of it. events are those of its end.
func checkFate(t *testing.T, end string, p taker, a arrival, fate byte, tabled bool, bring func() error, events *[]Event) {
	t.Helper()
	was, before := p.State(), len(*events)
	err := bring()
	_, broke := lastEvent((*events)[before:], EventViolation)
	switch now := p.State(); {
	case tabled != (fate == 't'):
		t.Errorf("%s, %v: that %v is taken is %v in the table", end, was, a, tabled)
	case fate == 'b' && (!broke || now != Closing),
		fate == 't' && (broke || err != nil),
		fate == 'i' && (err != nil || now != was || len(*events) != before):
		t.Errorf("%s, %v: %v makes it %v, broke the protocol %v, %v; want %c", end, was, a, now, broke, err, fate)
	}
}

// TestClientArrivals brings a client's path everything there is, in each state.
func TestClientArrivals(t *testing.T) {
	for s, fates := range clientFates {
		for a := range numArrivals {
			p := pathIn(t, s, map[State]State{Closed: Closed, Dead: Dead}[s])
			f := p.c.env.(*fakeClient)
			switch s {
			case Connecting:
				p.Dialed(f.now, 0, rsp(fourChunks, ours))
				p.Dialed(f.now, 1, rsp(fourChunks, ours))
			case Connected:
				f.submit(Write, nil)
			}
			checkFate(t, "client", p, a, fates[a], clientTakes[s][a], func() error { return bring(p, a) }, &f.events)
		}
	}
}

// TestServerArrivals brings a server's path everything there is, in each state.
func TestServerArrivals(t *testing.T) {
	who := someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"}
	for s, fates := range serverFates {
		for a := range numArrivals {
			f, p := serverPathIn(t, s)
			do := func() error { return bring(p, a) }
			switch {
			case s == Connected && a == someRequest:
				f.regions[p.keys[1].Key] = fakeRegion{p.ses.chunk(1), p.keys[1].Addr}
				do = func() error { return f.put(p, 1, p.keys, 1, Write, nil) }
			case s == Connected && a == someRested:
				p.asked = true
			}
			checkFate(t, "server", p, a, fates[a], serverTakes[s][a], do, &f.events)
		}
	}
	// What is taken of some alone.
	f := newFakeServer(t, smallServer)
	p, _ := f.up(who)
	if err := bring(p, someRested); err == nil {
		t.Error("RESTED is taken of a client that was not asked")
	}
	who.kernel = true
	f = newFakeServer(t, smallServer)
	p, _ = f.up(who)
	if err := bring(p, someFence); err == nil {
		t.Error("a fence is taken of a kernel")
	}
}

// serverPathIn returns a path that stands in a state, at the server that has it.
func serverPathIn(t *testing.T, s State) (*fakeServer, *ServerPath) {
	t.Helper()
	who := someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"}
	var f *fakeServer
	var p *ServerPath
	switch s {
	case Connecting:
		f = newFakeServer(t, smallServer)
		p = f.dial(who, 0, 2).Path
		f.dial(who, 1, 2)
	case Fencing:
		f, _, _ = atStore(t, smallServer)
		who.attempt = 2
		p = f.join(who)
	case Connected, Closing, Dead:
		f = newFakeServer(t, smallServer)
		p, _ = f.up(who)
	case Draining:
		f, p, _ = atStore(t, smallServer)
	}
	if s >= Closing {
		p.Lost(f.now, 0, rdserr.ErrReset)
	}
	if s > Closing {
		p.Gone(f.now)
	}
	if p.State() != s {
		t.Fatalf("the path is %v; want %v", p.State(), s)
	}
	return f, p
}
