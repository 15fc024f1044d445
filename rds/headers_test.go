package rds

import (
	"net/netip"
	"testing"

	"github.com/rdsd/rdsd/internal/quota"
)

// A message takes memory though it has no payload: it is counted with its
// header, in the name of the socket's owner too, until it has its outcome, and
// its outcome until that was fetched.
func TestHeadersAreMemory(t *testing.T) {
	w := newPair(t)
	b := &Budget{Limit: 1 << 20}
	w.a.cfg.Budget = b
	account := quota.New(1<<20, b.Datagrams).Account(quota.User(7))
	s, err := w.a.Bind(4000, SocketOptions{Account: account})
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(netip.MustParseAddr("10.0.0.77"), 5000) // nobody
	n := 0
	for ; n < 1<<16; n++ {
		if err := s.Send(w.now, to, nil, uint64(n), Reported); err != nil {
			break
		}
	}
	w.a.End()
	if want := (1 << 20) * 2 / 3 / msgBytes; n > want || n < want-1 {
		t.Errorf("%d empty datagrams were accepted; one user's share, two thirds of 1 MiB, has room for %d", n, want)
	}
	if b.Used() != int64(n*msgBytes) || account.Used() != b.Used() {
		t.Errorf("%d bytes are charged to the node and %d to the user for %d empty datagrams", b.Used(), account.Used(), n)
	}
	if k, _, err := s.Cancel(w.now, to); err != nil || k != n {
		t.Fatalf("%d cancelled: %v", k, err)
	}
	w.a.End()
	if b.Used() != outcomeBytes || account.Used() != outcomeBytes {
		t.Errorf("%d and %d bytes for one run of outcomes", b.Used(), account.Used())
	}
	s.Queue().Outcomes(nil)
	w.a.End()
	if b.Used() != 0 || account.Used() != 0 {
		t.Errorf("%d and %d bytes are left", b.Used(), account.Used())
	}
}
