package soft

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/rdsd/rdsd/transport/ib"
)

// TestDialEndsWithItsSide: a dial that nobody has answered ends when this side of it does.
func TestDialEndsWithItsSide(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(x *end, change func(mtu int, err error))
		want error
	}{
		"the address goes": {func(_ *end, change func(int, error)) { change(0, errors.New("no interface has it")) }, ErrGone},
		"the MTU falls":    {func(_ *end, change func(int, error)) { change(1024, nil) }, ErrMTU},
		"the device ends":  {func(x *end, _ func(int, error)) { x.d.Close() }, ErrClosed},
		"its owner ends":   {func(x *end, _ func(int, error)) { x.q.Disconnect() }, ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			d := open(t, local(2), nil, nil)
			d.watch.close() // the test tells of changes
			x := newEnd(t, d, depths)
			w, err := d.dial(x.q.(*queuePair), 0, netip.AddrPortFrom(netip.MustParseAddr(local(9)), testPort), ib.Param{})
			if err != nil {
				t.Fatal(err)
			}
			c.end(x, func(mtu int, err error) {
				d.mu.Lock()
				m := *d.m
				m.Interface = func() (string, int, error) { return d.port.netdev, mtu, err }
				d.m = &m
				d.mu.Unlock()
				d.look()
			})
			select {
			case <-w.done:
				if !errors.Is(w.err, c.want) {
					t.Errorf("it ends with %v, want %v", w.err, c.want)
				}
			default:
				t.Error("it goes on")
			}
		})
	}
}

// TestDisconnectIsTheEnd: after Disconnect a queue pair has nothing to tell, and is not connected
// any more.
func TestDisconnectIsTheEnd(t *testing.T) {
	x, y := connected(t, nil)
	x.q.Disconnect()
	y.end()
	x.d.r.Sync()
	if len(x.ended) != 0 {
		t.Errorf("whoever has ended it is told: %v", <-x.ended)
	}
	fresh := newEnd(t, x.d, depths)
	fresh.q.Disconnect()
	if _, err := x.d.dial(fresh.q.(*queuePair), 0, netip.AddrPortFrom(netip.MustParseAddr(local(9)), testPort), ib.Param{}); err == nil {
		t.Error("one that has ended dials")
	}
}
