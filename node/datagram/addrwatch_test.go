package datagram

import (
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/rds"
)

// madeNews are news that a test makes.
type madeNews struct {
	fails  chan error
	closed atomic.Bool
}

func (n *madeNews) Next() (gone []netip.Addr, all bool, err error) {
	err, open := <-n.fails
	if !open {
		err = os.ErrClosed
	}
	return nil, false, err
}

func (n *madeNews) Close() error {
	if !n.closed.Swap(true) {
		close(n.fails)
	}
	return nil
}

// TestWatchFails: an error of who tells of addresses is the end of one watch. Any address may have
// left before the next one is there, and that goes on.
func TestWatchFails(t *testing.T) {
	s := newSeam(t, nil)
	first, second := &madeNews{fails: make(chan error)}, &madeNews{fails: make(chan error)}
	none := 2 // attempts that fail
	open := func() (addrNews, error) {
		if none--; none >= 0 {
			return nil, syscall.EMFILE
		}
		return second, nil
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.a.followAddrs(first, nil, open, time.Millisecond)
	}()
	k := s.bind(rds.SocketOptions{})
	s.kernel(k)
	if s.undecided(k) == 0 {
		t.Fatal("nothing is under way")
	}
	first.fails <- os.NewSyscallError("netlink receive", syscall.ENOMEM)
	s.until("what is unacknowledged is unknown", func() bool { return s.undecided(k) == 0 })
	if !first.closed.Load() || none != -1 {
		t.Errorf("the first is closed: %v, %d attempts", first.closed.Load(), 2-none)
	}
	second.fails <- nil // it is asked
	s.a.cancel()
	await.Until(t, 3*time.Second, "the end", func() bool {
		select {
		case <-ended:
			return second.closed.Load()
		default:
			return false
		}
	})
}

// TestWatchThatFailsAtOnce: where each watch fails as soon as it is there, what is unacknowledged is made unknown
// ever more rarely.
func TestWatchThatFailsAtOnce(t *testing.T) {
	s := newSeam(t, nil)
	opened := []time.Time{time.Now()}
	open := func() (addrNews, error) {
		if opened = append(opened, time.Now()); len(opened) > 6 {
			s.a.cancel()
			return nil, syscall.EMFILE
		}
		return &failedNews{}, nil
	}
	const least = 2 * time.Millisecond
	s.a.followAddrs(&failedNews{}, nil, open, least)
	for i := range 6 {
		if rest := opened[i+1].Sub(opened[i]); rest < least<<i {
			t.Errorf("watch %d is opened after %v, not %v", i+1, rest, least<<i)
		}
	}
}

// failedNews is a watch that fails at once.
type failedNews struct{}

func (*failedNews) Next() (gone []netip.Addr, all bool, err error) {
	return nil, false, syscall.ENOBUFS
}
func (*failedNews) Close() error { return nil }
