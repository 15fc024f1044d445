package rtrs

import (
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
