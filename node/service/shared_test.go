package service

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/datagram"
)

// TestStatusOfManyIsShared: on a node with thousands of peers and sockets status costs a
// twentieth of a processor however often it is asked for, and nobody gets one that is older
// than a second; on a node with few everybody gets one of his own.
func TestStatusOfManyIsShared(t *testing.T) {
	const cost = 10 * time.Millisecond
	for _, c := range []struct {
		sockets     uint32
		most, least int
	}{{fewThings, 1000, 1000}, {fewThings + 1, 6, 4}} {
		synctest.Test(t, func(t *testing.T) {
			var s sharedStatus
			made := 0
			for range 1000 { // a second of those who ask
				st := s.get(func() *rdsdv1.Status {
					made++
					time.Sleep(cost)
					st := &rdsdv1.Status{}
					st.SetSockets(c.sockets)
					st.SetUptimeNs(uint64(time.Now().UnixNano()))
					return st
				})
				if age := time.Since(time.Unix(0, int64(st.GetUptimeNs()))); age > statusAge {
					t.Fatalf("a status is %v old", age)
				}
				time.Sleep(time.Millisecond)
			}
			if made > c.most || made < c.least {
				t.Errorf("with %d sockets it was made %d times, want %d to %d", c.sockets, made, c.least, c.most)
			}
		})
	}
}

// TestManyAskAtOnce: those who come while one is made get that, and none waits for one of
// his own.
func TestManyAskAtOnce(t *testing.T) {
	var s sharedStatus
	var made atomic.Int64
	var all sync.WaitGroup
	begun := time.Now()
	for range 100 {
		all.Go(func() {
			s.get(func() *rdsdv1.Status {
				made.Add(1)
				time.Sleep(100 * time.Millisecond) // what others get meanwhile lasts for statusAge
				st := &rdsdv1.Status{}
				st.SetPeers(fewThings + 1)
				return st
			})
		})
	}
	all.Wait()
	if most := 1 + int64(time.Since(begun)/statusAge); made.Load() > most {
		t.Errorf("made %d times, at most %d", made.Load(), most)
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
	n.services.deps.Read = func(s *datagram.Snapshot) { reads++; read(s) }
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
