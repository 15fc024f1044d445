package datagram

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
)

// flowEnd is one socket of a host, used without a front end.
type flowEnd struct {
	h *Local
	s *rds.Socket
	w wakeup
}

func openFlow(t *testing.T, h *Local, port uint16) *flowEnd {
	t.Helper()
	w := make(wakeup, 1)
	e, _ := h.Lock()
	s, err := e.Bind(port, rds.SocketOptions{Data: w})
	h.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	return &flowEnd{h, s, w}
}

func (f *flowEnd) send(t *testing.T, to *flowEnd, number uint64) {
	t.Helper()
	for {
		_, now := f.h.Lock()
		err := f.s.Send(now, to.s.Addr(), binary.BigEndian.AppendUint64(nil, number), 0, rds.Quiet)
		f.h.Unlock()
		switch {
		case err == nil:
			return
		case errors.Is(err, rdserr.ErrWouldBlock), errors.Is(err, rdserr.ErrCongested):
			time.Sleep(time.Millisecond)
		default:
			t.Fatal(err)
		}
	}
}

// receive waits for the next datagram.
func (f *flowEnd) receive(t *testing.T) (netip.AddrPort, uint64) {
	t.Helper()
	src, n, err := f.wait()
	if err != nil {
		t.Fatal(err)
	}
	return src, n
}

func (f *flowEnd) wait() (netip.AddrPort, uint64, error) {
	limit := time.After(20 * time.Second)
	for {
		_, now := f.h.Lock()
		f.s.Events()
		d, ok := f.s.Queue().Recv()
		f.s.ReadAll(now)
		f.h.Unlock()
		if ok {
			n := binary.BigEndian.Uint64(d.Payload)
			d.Release()
			return d.Source, n, nil
		}
		select {
		case <-f.w:
		case <-limit:
			return netip.AddrPort{}, 0, fmt.Errorf("%v received nothing for 20 s", f.s.Addr())
		}
	}
}

func linksOf(h *Local, remote netip.Addr) (up, links, lanes int) {
	e, _ := h.Lock()
	defer h.Unlock()
	for _, pe := range e.Peers() {
		if pe.Addr() == remote {
			lanes = pe.Conn().Lanes()
			pe.Conn().EachLane(func(p *conn.Lane) {
				if p.State() == conn.Up {
					up++
				}
				links += len(h.laneOf(p).links)
			})
		}
	}
	return up, links, lanes
}

func twoNodes(t *testing.T, a, b string) (x, y *Local) {
	port := freeTCPPort(t)
	na, nb := benchNode(t, port, a), benchNode(t, port, b)
	t.Cleanup(func() { na.Close(); nb.Close() })
	return na.list[0], nb.list[0]
}

// TestLanes: many sockets of either side spread over lanes, each flow in
// order, with lanes cut all the while.
func TestLanes(t *testing.T) {
	x, y := twoNodes(t, "127.0.0.61", "127.0.0.62")
	const flows, each = 24, 300
	for _, way := range []struct{ from, to *Local }{{x, y}, {y, x}} { // the larger side pokes
		sink := openFlow(t, way.to, 4000)
		done := make(chan error, 1)
		go func() {
			next := map[netip.AddrPort]uint64{}
			for range flows * each {
				src, n, err := sink.wait()
				if err != nil {
					done <- err
					return
				}
				if n != next[src] {
					done <- fmt.Errorf("from %v came %d, due was %d", src, n, next[src])
					return
				}
				next[src]++
			}
			done <- nil
		}()
		var from []*flowEnd
		for range flows {
			from = append(from, openFlow(t, way.from, 0))
		}
		for i := range each {
			for _, f := range from {
				f.send(t, sink, uint64(i))
			}
			if i%100 == 50 {
				way.from.all.DropLane(netip.Addr{}, way.to.addr, i/100)
			}
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		_, now := way.to.Lock()
		sink.s.Close(now)
		way.to.Unlock()
	}
	up, links, lanes := linksOf(x, y.addr)
	if lanes != 8 || up < 4 || links != up {
		t.Errorf("%d lanes agreed, %d up, %d links; 8 agreed and one link for each lane that is up are right", lanes, up, links)
	}
}

// TestDuel: both sides begin at the same instant and end with one link (D10).
func TestDuel(t *testing.T) {
	for _, pair := range [][2]string{{"127.0.0.63", "127.0.0.64"}, {"127.0.0.66", "127.0.0.65"}} {
		for range 10 {
			t.Run("", func(t *testing.T) {
				x, y := twoNodes(t, pair[0], pair[1])
				a, b := openFlow(t, x, 4000), openFlow(t, y, 4000)
				begun := make(chan struct{})
				go func() {
					defer close(begun)
					_, now := x.Lock()
					err := a.s.Send(now, b.s.Addr(), binary.BigEndian.AppendUint64(nil, 1), 0, rds.Quiet)
					x.Unlock()
					if err != nil {
						t.Error(err)
					}
				}()
				b.send(t, a, 2)
				<-begun
				if _, n := a.receive(t); n != 2 {
					t.Errorf("received %d", n)
				}
				if _, n := b.receive(t); n != 1 {
					t.Errorf("received %d", n)
				}
				for _, h := range []*Local{x, y} {
					other := x
					if h == x {
						other = y
					}
					if up, links, _ := linksOf(h, other.addr); up != links || links > 2 { // lane 0 and the flow's own
						t.Errorf("%v has %d lanes up and %d links", h.addr, up, links)
					}
				}
			})
		}
	}
}

// TestRestartedPeer: a node that comes back at the same address is served at
// once by the one that stayed, in both directions.
func TestRestartedPeer(t *testing.T) {
	port := freeTCPPort(t)
	for _, c := range []struct{ stays, restarts string }{{"127.0.0.67", "127.0.0.68"}, {"127.0.0.68", "127.0.0.67"}} {
		stays := benchNode(t, port, c.stays)
		a := openFlow(t, stays.list[0], 4000)
		for life := range uint64(4) {
			n := benchNode(t, port, c.restarts)
			b := openFlow(t, n.list[0], 4000)
			if life%2 == 0 {
				b.send(t, a, life)
				if _, got := a.receive(t); got != life {
					t.Errorf("received %d in life %d", got, life)
				}
			}
			a.send(t, b, 100+life)
			if _, got := b.receive(t); got != 100+life {
				t.Errorf("received %d in life %d", got, life)
			}
			n.Close()
		}
		stays.Close()
	}
}
