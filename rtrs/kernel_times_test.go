package rtrs

import (
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// TestKernelSilence: a kernel may be silent for 30 s, its own limit, on either side of a path;
// another rdsd for 800 ms. One heartbeat is sent that it does not answer.
func TestKernelSilence(t *testing.T) {
	for _, test := range []struct {
		kernel        bool
		asked, silent time.Duration
	}{{true, 5 * time.Second, 30 * time.Second}, {false, 200 * ms, 800 * ms}} {
		flags := uint32(ours)
		if test.kernel {
			flags = rtrswire.NewRKey
		}
		c := newFakeClient(t, ClientConfig{})
		p := c.add(1)
		c.connect(p, fourChunks, flags, 0)
		s := newFakeServer(t, smallServer)
		q, _ := s.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a", kernel: test.kernel})
		c.posts, s.posts = nil, nil
		for _, at := range []time.Duration{test.asked - 1, 1, test.silent - test.asked - 1} {
			c.tick(at)
			s.tick(at)
			if n := min(c.now/test.asked, 1); len(c.posts) != int(n) || len(s.posts) != int(n) {
				t.Fatalf("kernel %v: after %v, %d heartbeats of the client and %d of the server, not %d", test.kernel, c.now, len(c.posts), len(s.posts), n)
			}
		}
		if p.State() != Connected || q.State() != Connected {
			t.Fatalf("kernel %v: after %v, %v and %v", test.kernel, c.now, p.State(), q.State())
		}
		c.tick(1)
		s.tick(1)
		if p.State() != Closing || q.State() != Closing {
			t.Fatalf("kernel %v: after %v, %v and %v", test.kernel, c.now, p.State(), q.State())
		}
	}
}

// TestKernelConnectsSlowly: each connection of a kernel may take 30 s, and the messages behind
// the last one too. An rdsd has 5 s for everything.
func TestKernelConnectsSlowly(t *testing.T) {
	const almost = 30*time.Second - 1
	w := someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a", kernel: true}
	s := newFakeServer(t, smallServer)
	p := s.dial(w, 0, 3).Path
	for i := uint16(1); i < 3; i++ {
		s.tick(almost)
		s.dial(w, i, 3)
	}
	s.tick(almost)
	if p.State() != Connecting {
		t.Fatalf("at %v, a kernel's path is %v", s.now, p.State())
	}
	s.tick(1)
	if p.State() != Closing {
		t.Fatalf("30 s behind its last connection, a kernel's path is %v", p.State())
	}
	w.kernel, w.path = false, 2
	p = s.dial(w, 0, 3).Path
	s.tick(4 * time.Second)
	s.dial(w, 1, 3)
	if s.tick(time.Second); p.State() != Closing {
		t.Fatalf("after 5 s, the path of an rdsd is %v", p.State())
	}

	for flags, most := range map[uint32]time.Duration{rtrswire.NewRKey: almost, ours: 5*time.Second - 1} {
		c := newFakeClient(t, ClientConfig{Conns: 3})
		p := c.add(1)
		for i := range 3 {
			p.Dialed(c.now, i, rsp(fourChunks, flags))
			if flags == rtrswire.NewRKey || i == 2 {
				c.tick(most)
			}
			if p.State() != Connecting {
				t.Fatalf("at %v, the path to a server with flags %#x is %v", c.now, flags, p.State())
			}
		}
		if c.tick(1); p.State() != Closing {
			t.Fatalf("at %v, the path to a server with flags %#x is %v", c.now, flags, p.State())
		}
	}
}

// TestFirstAnswerOfAKernel: where nobody knows yet whether the server is a kernel, its first answer may
// take 30 s. One that turns out to be an rdsd has 5 s for the rest, then and later; a kernel keeps
// its 30 s when it is connected again.
func TestFirstAnswerOfAKernel(t *testing.T) {
	const kernels, ours5 = 30 * time.Second, 5 * time.Second
	for _, test := range []struct {
		flags  uint32
		answer bool
		again  time.Duration
	}{{rtrswire.NewRKey, true, kernels}, {ours, true, ours5}, {0, false, 0}} {
		c := newFakeClient(t, ClientConfig{Conns: 2})
		p := c.add(1)
		p.MayBeKernel(c.now)
		if c.tick(kernels - 1); p.State() != Connecting {
			t.Fatalf("%#x: at %v it is %v", test.flags, c.now, p.State())
		}
		if !test.answer {
			if c.tick(1); p.State() != Closing {
				t.Errorf("at %v it is %v", c.now, p.State())
			}
			continue
		}
		p.Dialed(c.now, 0, rsp(fourChunks, test.flags))
		if c.tick(test.again - 1); p.State() != Connecting {
			t.Fatalf("%#x: after its first answer it is %v", test.flags, p.State())
		}
		if c.tick(1); p.State() != Closing {
			t.Fatalf("%#x: %v after its first answer it is %v", test.flags, test.again, p.State())
		}
		c = newFakeClient(t, ClientConfig{})
		p = c.add(1)
		p.MayBeKernel(c.now)
		c.connect(p, fourChunks, test.flags, 0)
		p.Lost(c.now, 0, rdserr.ErrReset)
		p.Gone(c.now)
		for p.State() != Connecting {
			c.tick(ms)
		}
		if c.tick(p.Info().Since + test.again - 1 - c.now); p.State() != Connecting {
			t.Fatalf("%#x: connected again, it is %v: %v", test.flags, p.State(), p.Info().Err)
		}
		if c.tick(1); p.State() != Closing {
			t.Fatalf("%#x: %v after it was dialled again it is %v", test.flags, test.again, p.State())
		}
	}
}
