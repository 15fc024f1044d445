package service

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
)

// as is a context of a call of a user, which ends with end.
func as(t *testing.T, uid uint32) (ctx context.Context, end func()) {
	return context.WithCancel(context.WithValue(t.Context(), identityKey{}, config.Identity{UID: uid, GID: uid}))
}

// TestPingsStand: pings to where nobody answers hold a port each, as long as their caller
// likes. Whose they are is known, they are few, and they end with their calls.
func TestPingsStand(t *testing.T) {
	owner := uint32(1)
	w := startWorld(t, func(c *config.Config) {
		c.Ports = []config.PortGrant{{UID: &owner, Range: config.PortRange{First: 1024, Last: 32767}, Exclusive: true}}
	})
	a := &adminServer{front: w.services}
	h := w.hosts.Locals()[0]
	bound := func() (l []*rds.Socket) {
		e, _ := h.Lock()
		l = append(l, e.Bound()...)
		h.Unlock()
		return l
	}
	ask := func(ctx context.Context, to byte) error {
		r := &rdsdv1.PingRequest{}
		r.SetRemote([]byte{127, 77, 254, to})
		r.SetTimeoutNs(int64(time.Hour))
		_, err := a.Ping(ctx, r)
		return err
	}
	ctx, end := as(t, 1000)
	defer end()
	ended := make(chan error, maxPings)
	for i := range maxPings {
		go func() { ended <- ask(ctx, byte(i)) }() // ends with end
	}
	await.Until(t, time.Minute, "The pings are under way.", func() bool { return len(bound()) == maxPings })
	for _, s := range bound() {
		if o := s.Options(); o.UID != 1000 || s.Addr().Port() < 32768 {
			t.Errorf("a ping of user 1000 has port %d, and is user %d's", s.Addr().Port(), o.UID)
		}
	}
	if err := ask(ctx, 200); !errors.Is(err, rdserr.ErrTooMany) || len(bound()) != maxPings {
		t.Errorf("one more: %v, with %d sockets", err, len(bound()))
	}
	other, endOther := as(t, 1001)
	go func() { ended <- ask(other, 201) }() // ends with endOther
	await.Until(t, time.Minute, "Another user's ping is under way.", func() bool { return len(bound()) == maxPings+1 })
	endOther()
	end()
	for range maxPings + 1 {
		if err := <-ended; !errors.Is(err, rdserr.ErrTimeout) {
			t.Errorf("a ping ended with %v", err)
		}
	}
	if n := len(bound()); n != 0 || len(w.services.pings.byUser) != 0 {
		t.Errorf("%d sockets are left, and counts %v", n, w.services.pings.byUser)
	}
}

// TestPingTakesAnyPortAtLast: where a user may have no port at all, a ping has one all the same.
func TestPingTakesAnyPortAtLast(t *testing.T) {
	w := startWorld(t, func(*config.Config) {})
	h := w.hosts.Locals()[0]
	if _, _, err := w.hosts.Ping(t.Context(), datagram.Pinger{UID: 7}, netip.Addr{}, h.Addr()); err != nil {
		t.Error(err)
	}
}

// silentStream is the stream of a watch that nothing comes of.
type silentStream[T any] struct {
	ctx     context.Context
	started chan struct{}
}

func (s *silentStream[T]) Context() context.Context     { return s.ctx }
func (s *silentStream[T]) Send(*T) error                { return nil }
func (s *silentStream[T]) SendHeader(metadata.MD) error { s.started <- struct{}{}; return nil }
func (s *silentStream[T]) SetHeader(metadata.MD) error  { return nil }
func (s *silentStream[T]) SetTrailer(metadata.MD)       {}
func (s *silentStream[T]) SendMsg(any) error            { return nil }
func (s *silentStream[T]) RecvMsg(any) error            { return nil }

// TestWatchesTellOfLoss: a watch that was not told of all ends with that.
func TestWatchesTellOfLoss(t *testing.T) {
	w := startWorld(t, func(*config.Config) {})
	a := &adminServer{front: w.services}
	ctx, end := as(t, 1000)
	defer end()
	watch := &datagram.Watch{C: make(chan []rds.Notice, 1)}
	watch.C <- []rds.Notice{{}}
	watch.Lost.Store(true)
	time.AfterFunc(time.Minute, end) // or it waits for more
	if err := a.tellNotices(&silentStream[rdsdv1.CongestionNotice]{ctx: ctx}, watch); !errors.Is(err, rdserr.ErrTooMany) || !strings.Contains(err.Error(), "lost") {
		t.Errorf("it ended with %v", err)
	}
}

// TestWatchesStand: all watches are told of each change, and walked when one ends: a user has few.
func TestWatchesStand(t *testing.T) {
	w := startWorld(t, func(*config.Config) {})
	a := &adminServer{front: w.services}
	watch := func(ctx context.Context, started chan struct{}) error {
		return a.WatchCongestion(&rdsdv1.WatchCongestionRequest{}, &silentStream[rdsdv1.CongestionNotice]{ctx, started})
	}
	ctx, end := as(t, 1000)
	defer end()
	before := w.deps.Memory.Used()
	started, ended := make(chan struct{}, maxWatches+1), make(chan error, maxWatches)
	for range maxWatches {
		go func() { ended <- watch(ctx, started) }() // ends with end
		<-started
	}
	if used := w.deps.Memory.Kinds()[quota.Clients].Used; used != maxWatches*datagram.WatchBytes {
		t.Errorf("%d watches are charged %d bytes, want %d each", maxWatches, used, datagram.WatchBytes)
	}
	if err := watch(ctx, started); !errors.Is(err, rdserr.ErrTooMany) {
		t.Errorf("one more: %v", err)
	}
	other, endOther := as(t, 1001)
	go func() { ended <- watch(other, started) }() // ends with endOther
	<-started
	endOther()
	end()
	for range maxWatches + 1 {
		if err := <-ended; err != nil {
			t.Errorf("a watch ended with %v", err)
		}
	}
	if used := w.deps.Memory.Used(); used != before {
		t.Errorf("%d bytes are charged when all have ended, before it %d", used, before)
	}
	if len(w.services.watches.byUser) != 0 {
		t.Errorf("counts are left: %v", w.services.watches.byUser)
	}
}
