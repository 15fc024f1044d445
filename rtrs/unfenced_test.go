package rtrs

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// twoPathsOfKernelServer is a client with two paths to a kernel, of which the one that has a
// write was lost.
func twoPathsOfKernelServer(t *testing.T, cfg ClientConfig) (f *fakeClient, r *Req, lost *ClientPath) {
	t.Helper()
	cfg.Kernel.HeartbeatEvery = time.Minute // that nobody answers ends no path
	f = newFakeClient(t, cfg)
	for i := range byte(2) {
		f.connect(f.add(i+1), fourChunks, rtrswire.NewRKey, 0)
	}
	f.take()
	r = f.submit(Write, make([]byte, 512))
	lost = one(t, f.take()).path.(*ClientPath)
	lost.Lost(f.now, 0, syscall.ECONNRESET)
	return f, r, lost
}

// TestRetryNow: requests of a kernel's lost path go to another one as soon as their memory is free,
// which is when its links are closed.
func TestRetryNow(t *testing.T) {
	f, r, lost := twoPathsOfKernelServer(t, ClientConfig{Unfenced: RetryNow})
	if ps := f.take(); len(ps) != 0 {
		t.Fatalf("sent while the lost path's links may read its memory: %+v", ps)
	}
	lost.Gone(f.now)
	o := one(t, f.take())
	if s := f.c.Stats(); o.path == lost || s.Unfenced != 1 || s.Stranded != 0 {
		t.Fatalf("%+v", s)
	}
	if err := f.answer(o, 0, 1); err != nil || r.Err != nil {
		t.Fatal(err, r.Err)
	}
	if what := f.c.broken(); what != "" {
		t.Fatal(what)
	}
	// Removed, its requests go on as well.
	f, r, lost = twoPathsOfKernelServer(t, ClientConfig{Unfenced: RetryNow})
	if err := f.c.Remove(f.now, lost); err != nil {
		t.Fatal(err)
	}
	lost.Gone(f.now)
	if o := one(t, f.take()); o.path == lost || r.Err != nil {
		t.Fatalf("%+v, %v", o, r.Err)
	}
}

// TestSetUnfenced: what is changed counts for requests that wait already.
func TestSetUnfenced(t *testing.T) {
	for _, test := range []struct {
		what      string
		was, will Unfenced
		at, after time.Duration // when it is changed, and to which time
		sent      time.Duration
	}{
		{"to now", RetryNever, RetryNow, 5 * time.Minute, 0, 5 * time.Minute},
		{"now at last", RetryAfter, RetryNow, 10 * time.Second, 0, 10 * time.Second},
		{"to a time that has passed", RetryNever, RetryAfter, time.Minute, 0, time.Minute},
		{"to one that has not", RetryNever, RetryAfter, 10 * time.Second, 0, 40 * time.Second},
		{"to a longer one", RetryAfter, RetryAfter, 10 * time.Second, time.Minute, time.Minute},
		{"to a shorter one", RetryAfter, RetryAfter, 10 * time.Second, 20 * time.Second, 20 * time.Second},
		{"to never", RetryAfter, RetryNever, 39 * time.Second, 0, Never},
	} {
		t.Run(test.what, func(t *testing.T) {
			f, _, lost := twoPathsOfKernelServer(t, ClientConfig{Unfenced: test.was})
			lost.Gone(f.now)
			f.tick(test.at)
			if err := f.c.SetUnfenced(f.now, test.will, test.after); err != nil {
				t.Fatal(err)
			}
			wantErr(t, f.c.SetUnfenced(f.now, RetryNever+1, 0), rdserr.ErrInvalid)
			wantErr(t, f.c.SetUnfenced(f.now, test.will, -1), rdserr.ErrInvalid)
			if test.sent == Never {
				f.tick(5 * time.Minute)
				if ps := f.take(); len(ps) != 0 {
					t.Fatalf("sent: %+v", ps)
				}
				return
			}
			if test.sent > f.now {
				f.tick(test.sent - f.now - 1)
				if ps := f.take(); len(ps) != 0 {
					t.Fatalf("sent too early: %+v", ps)
				}
				f.tick(1)
			}
			if o := one(t, f.take()); o.path == lost || f.c.Stats().Unfenced != 1 {
				t.Fatalf("%+v", f.c.Stats())
			}
		})
	}
}

// TestRemovedPathOfKernelServer: with RetryNever nothing fences what was in flight on a path that is
// removed. It fails when it cannot arrive any more, and not before; others are sent meanwhile, unless a
// write has failed already that may still happen.
func TestRemovedPathOfKernelServer(t *testing.T) {
	remove := func(f *fakeClient, lost *ClientPath) error {
		defer lost.Gone(f.now)
		return f.c.Remove(f.now, lost)
	}
	gone := func(do func(f *fakeClient, lost *ClientPath) error) func(f *fakeClient, lost *ClientPath) error {
		return func(f *fakeClient, lost *ClientPath) error {
			lost.Gone(f.now)
			return do(f, lost)
		}
	}
	disconnected := func(at time.Duration) func(f *fakeClient, lost *ClientPath) error {
		return gone(func(f *fakeClient, lost *ClientPath) error {
			if err := f.c.Disconnect(f.now, lost); err != nil || lost.State() != Closed {
				t.Errorf("%v, the path is %v", err, lost.State())
			}
			f.tick(at)
			return remove(f, lost)
		})
	}
	for _, test := range []struct {
		what   string
		cfg    ClientConfig
		remove func(f *fakeClient, lost *ClientPath) error
		at     time.Duration // when its requests end
	}{
		{"closing", ClientConfig{Unfenced: RetryNever}, remove, 40 * time.Second},
		{"waiting for its next attempt", ClientConfig{Unfenced: RetryNever}, gone(remove), 40 * time.Second},
		{"disconnected", ClientConfig{Unfenced: RetryNever}, disconnected(5 * time.Second), 40 * time.Second},
		{"disconnected long ago", ClientConfig{Unfenced: RetryNever}, disconnected(time.Minute), time.Minute},
		{"out of attempts", ClientConfig{Unfenced: RetryNever, MaxReconnects: -1}, gone(remove), 40 * time.Second},
		{"before RetryNever", ClientConfig{}, func(f *fakeClient, lost *ClientPath) error {
			err := remove(f, lost)
			f.tick(10 * time.Second)
			return errors.Join(err, f.c.SetUnfenced(f.now, RetryNever, 0))
		}, 40 * time.Second},
		{"long before RetryNever", ClientConfig{UnfencedAfter: 5 * time.Minute}, func(f *fakeClient, lost *ClientPath) error {
			err := remove(f, lost)
			f.tick(time.Minute)
			return errors.Join(err, f.c.SetUnfenced(f.now, RetryNever, 40*time.Second))
		}, time.Minute},
	} {
		for _, failed := range []bool{false, true} { // the write, before the path is removed
			t.Run(fmt.Sprint(test.what, ", failed ", failed), func(t *testing.T) {
				f, r, lost := twoPathsOfKernelServer(t, test.cfg)
				if failed {
					f.c.Cancel(f.now, r, syscall.EIO)
				}
				if err := test.remove(f, lost); err != nil || lost.State() != Dead {
					t.Fatalf("%v, the path is %v", err, lost.State())
				}
				var sent []posted
				other := f.submit(Write, nil)
				if test.at > f.now {
					f.tick(test.at - f.now - 1)
					if sent = f.take(); len(sent) > 0 == failed || f.c.Stats().Unfenced != 0 || f.c.ghosts > 0 != failed || len(f.done) > 0 != failed {
						t.Fatalf("at %v %+v was sent, %d ghosts, %d are done", f.now, sent, f.c.ghosts, len(f.done))
					}
					f.tick(1)
				} else {
					f.tick(0)
				}
				sent = append(sent, f.take()...)
				if o := one(t, sent); o.path == lost || other.at != inFlight || one(t, f.done) != r {
					t.Fatalf("%+v; the other is %v, %d are done", o, other.at, len(f.done))
				}
				if want := map[bool]error{false: ErrNoPath, true: syscall.EIO}[failed]; r.Err != want {
					t.Errorf("it failed with %v, want %v", r.Err, want)
				}
				if s := f.c.Stats(); s.Unfenced != 1 || s.Fences != 0 || f.c.ghosts != 0 || len(f.c.epochs) != 0 || len(f.c.free) != f.c.Depth()-1 {
					t.Errorf("%+v, %d ghosts, %d epochs, %d permits free", s, f.c.ghosts, len(f.c.epochs), len(f.c.free))
				}
				if what := f.c.broken(); what != "" {
					t.Error(what)
				}
			})
		}
	}
}

// TestSetMaxReconnects: none means that a path which is lost stays so.
func TestSetMaxReconnects(t *testing.T) {
	f, p := upClient(t, ClientConfig{MaxReconnects: -1})
	lose := func() {
		p.Lost(f.now, 0, syscall.ECONNRESET)
		p.Gone(f.now)
	}
	if lose(); p.State() != Closed {
		t.Fatalf("the path is %v", p.State())
	}
	if err := f.c.Reconnect(f.now, p); err != nil {
		t.Fatal(err)
	}
	f.tick(0)
	f.connect(p, fourChunks, ours, 7)
	for _, n := range []int{-2, 10000} {
		wantErr(t, f.c.SetMaxReconnects(n), rdserr.ErrInvalid)
	}
	if err := f.c.SetMaxReconnects(1); err != nil {
		t.Fatal(err)
	}
	if lose(); p.State() != Reconnecting {
		t.Fatalf("the path is %v", p.State())
	}
	f.tick(time.Second)
	p.Refused(f.now, 0, nil, syscall.ECONNREFUSED)
	if p.Gone(f.now); p.State() != Closed {
		t.Fatalf("the path is %v", p.State())
	}
}
