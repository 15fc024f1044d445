package service

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/rdserr"
)

// TestStatusOfManyIsShared: where there is much to look at, whatever it is, status costs a
// twentieth of a processor however often it is asked for, and nobody gets one that is older
// than a second; where there is little everybody gets one of his own.
func TestStatusOfManyIsShared(t *testing.T) {
	for _, c := range []struct {
		cost        time.Duration
		most, least int
	}{{statusCheap, 1000, 1000}, {10 * time.Millisecond, 6, 4}} {
		synctest.Test(t, func(t *testing.T) {
			var s sharedStatus
			made := 0
			for range 1000 { // a second of those who ask
				st, err := s.get(t.Context(), func() *rdsdv1.Status {
					made++
					time.Sleep(c.cost)
					st := &rdsdv1.Status{}
					st.SetUptimeNs(uint64(time.Now().UnixNano()))
					return st
				})
				if age := time.Since(time.Unix(0, int64(st.GetUptimeNs()))); age > statusAge || err != nil {
					t.Fatalf("a status is %v old, %v", age, err)
				}
				time.Sleep(time.Millisecond)
			}
			if made > c.most || made < c.least {
				t.Errorf("it takes %v and was made %d times, want %d to %d", c.cost, made, c.least, c.most)
			}
		})
	}
}

// TestManyAskAtOnce: those who come while one is made get the next, all the same one, and those who do
// not wait any more have none made.
func TestManyAskAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s sharedStatus
		made := 0
		finish := make(chan struct{})
		ask := func(ctx context.Context) (*rdsdv1.Status, error) {
			return s.get(ctx, func() *rdsdv1.Status {
				made++
				<-finish
				st := &rdsdv1.Status{}
				st.SetUptimeNs(uint64(made))
				return st
			})
		}
		go ask(t.Context()) // ends with finish
		synctest.Wait()
		time.Sleep(statusCheap / 2)
		ctx, cancel := context.WithCancel(t.Context())
		var gone, stay sync.WaitGroup
		for range 100 {
			gone.Go(func() {
				if st, err := ask(ctx); !errors.Is(err, rdserr.ErrTimeout) {
					t.Errorf("a call that was cancelled got %v, %v", st, err)
				}
			})
			stay.Go(func() {
				if st, err := ask(t.Context()); err != nil || st.GetUptimeNs() != 2 {
					t.Errorf("one who came while the first was made got %v, %v", st, err)
				}
			})
		}
		synctest.Wait()
		cancel()
		gone.Wait()
		if made != 1 {
			t.Errorf("made %d times while the first is made", made)
		}
		close(finish)
		stay.Wait()
		if _, err := ask(ctx); !errors.Is(err, rdserr.ErrTimeout) || made != 2 {
			t.Errorf("made %d times, %v", made, err)
		}
	})
}

// TestStatusThatPanicked: who waits for one that came to nothing makes one.
func TestStatusThatPanicked(t *testing.T) {
	var s sharedStatus
	func() {
		defer func() { recover() }()
		s.get(t.Context(), func() *rdsdv1.Status { panic("a fault") })
	}()
	if st, err := s.get(t.Context(), func() *rdsdv1.Status { return &rdsdv1.Status{} }); st == nil || err != nil {
		t.Errorf("got %v, %v", st, err)
	}
}

// TestGetStatusIsShared: the call is what the bound is of.
func TestGetStatusIsShared(t *testing.T) {
	cfg := clienttest.Config(t)
	cfg.Limits.MaxPeers, cfg.Limits.MaxSockets, cfg.Limits.MaxSocketsPerUID = 2000, 6000, 6000
	n := newWorld(t, cfg, world{real: true})
	crowd(t, n.hosts.Locals()[0])
	reads := 0
	read := n.services.deps.Read
	n.services.deps.Read = func(s *datagram.Snapshot) {
		reads++
		time.Sleep(2 * statusCheap)
		read(s)
	}
	begun := time.Now()
	for range 200 {
		if _, err := (&adminServer{front: n.services}).GetStatus(t.Context(), &rdsdv1.GetStatusRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	if most := 2 + int(time.Since(begun)/(10*time.Millisecond)); reads > most || reads >= 200 {
		t.Errorf("the node was looked at %d times in %v", reads, time.Since(begun))
	}
}
