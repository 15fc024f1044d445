package rdsd

import (
	"net/netip"
	"testing"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

// cancelling is a CancelSentTo that runs.
type cancelling struct {
	asked *rdsdv1.ClientMessage
	r     CancelResult
	done  chan error
}

// beginCancel starts a CancelSentTo and takes its Cancel in.
func beginCancel(t *testing.T, s *Socket, st *fakeStream, dst netip.AddrPort) *cancelling {
	t.Helper()
	c := &cancelling{}
	ctx := testContext(t)
	c.done = goErr(func() (err error) {
		c.r, err = s.CancelSentTo(ctx, dst)
		return err
	})
	if c.asked = st.next(); c.asked.WhichBody() != rdsdv1.ClientMessage_Cancel_case {
		t.Fatalf("got %v, want the Cancel", c.asked)
	}
	return c
}

// end answers with no datagram of the daemon's, and waits for the call.
func (c *cancelling) end(t *testing.T, st *fakeStream, what string, want uint64) {
	t.Helper()
	st.sendCancelled(c.asked, 0, 0)
	if err := waitErr(t, c.done); err != nil || c.r.Cancelled != want {
		t.Errorf("%s: cancelled %d, %v, want %d", what, c.r.Cancelled, err, want)
	}
}

// Posted datagrams count for a call that concerns their destination, and once: of several calls
// that run together none reports another one's. A Request concludes from it that it has
// not left.
func TestCancelsCountTheirOwn(t *testing.T) {
	third := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.4"), peerAddr.Port())
	host := netip.AddrPortFrom(peerAddr.Addr(), 0)
	for what, c := range map[string]struct {
		calls []netip.AddrPort // in the order in which they begin, and end
		want  []uint64
	}{
		"another port":     {[]netip.AddrPort{otherAddr, peerAddr}, []uint64{0, 2}},
		"another address":  {[]netip.AddrPort{third, peerAddr}, []uint64{1, 2}},
		"any port":         {[]netip.AddrPort{third, host}, []uint64{1, 3}},
		"both ports":       {[]netip.AddrPort{otherAddr, peerAddr, third}, []uint64{0, 2, 1}},
		"one port, twice":  {[]netip.AddrPort{peerAddr, peerAddr}, []uint64{2, 0}},
		"port and address": {[]netip.AddrPort{peerAddr, host}, []uint64{2, 1}},
		"address and port": {[]netip.AddrPort{host, peerAddr}, []uint64{3, 0}},
	} {
		t.Run(what, func(t *testing.T) {
			_, s, st := bindClear(t)
			fourth := netip.AddrPortFrom(peerAddr.Addr(), 5002)
			makeClearOnce(t, s, st, third)
			makeClearOnce(t, s, st, fourth)
			ds := []Datagram{{Addr: peerAddr}, {Addr: third}, {Addr: fourth}, {Addr: peerAddr}}
			if n, err := s.SendBatch(testContext(t), ds); n != len(ds) || err != nil {
				t.Fatal(n, err)
			}
			b := st.nextSend()
			var calls []*cancelling
			for _, dst := range c.calls {
				calls = append(calls, beginCancel(t, s, st, dst))
			}
			st.sendResult(b, sendError(0, uint32(len(ds)), rdserr.ErrCanceled))
			for i, call := range calls {
				call.end(t, st, c.calls[i].String(), c.want[i])
			}
			x := streamOf(s)
			x.mu.Lock()
			defer x.mu.Unlock()
			if len(x.posts.cancels) > 0 {
				t.Errorf("%d calls are left", len(x.posts.cancels))
			}
		})
	}
}

func makeClearOnce(t *testing.T, s *Socket, st *fakeStream, dst netip.AddrPort) {
	t.Helper()
	done := goErr(func() error { return s.Send(testContext(t), dst, nil) })
	st.sendResult(st.nextSend())
	if err := waitErr(t, done); err != nil {
		t.Fatal(err)
	}
	untilWay(t, s, dst, wayClear)
}
