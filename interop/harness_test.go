package interop

import (
	"bytes"
	"context"
	"os"
	"testing"
	"time"
)

// The twin implementations must agree; the kernel tests would only show that
// something differs, not what.
func TestSignedDatagrams(t *testing.T) {
	for n, length := range []int{SignedMin, 25, 1500, 1 << 20} {
		p := Sign(nil, 7, uint64(n), length)
		if len(p) != length {
			t.Fatalf("asked for %d bytes, got %d", length, len(p))
		}
		if flow, m, ok := openSigned(p); !ok || flow != 7 || m != uint64(n) {
			t.Fatalf("datagram of %d bytes opened as %d/%d, %v", length, flow, m, ok)
		}
		for _, i := range []int{0, 5, 19, 20, length - 1} {
			q := bytes.Clone(p)
			q[i] ^= 0x10
			if _, _, ok := openSigned(q); ok {
				t.Fatalf("byte %d of %d changed and nobody noticed", i, length)
			}
		}
	}
	c := NewChecker(map[uint32]int{1: 5})
	for _, n := range []uint64{0, 2, 2, 4} {
		c.Add(Sign(nil, 1, n, 64))
	}
	c.Add([]byte("noise"))
	r := c.Report()
	if r.Missing != 2 || r.Back != 1 || r.Bad != 1 || r.Got != 4 || c.Left() != 0 {
		t.Fatalf("checker: %+v", r)
	}
}

// The harness itself: a kernel and the least peer there is.
func TestBarePeer(t *testing.T) {
	l := needLab(t)
	for _, pr := range pairs {
		t.Run(pr.name, func(t *testing.T) {
			ctx := limited(t, 30*time.Second)
			p, err := newBarePeer(l.ns, pr.ours, pr.kernel)
			if err != nil {
				t.Fatal(err)
			}
			defer p.close()

			var pong struct {
				RTT []float64 `json:"rtt_us"`
			}
			if err := l.vm.Call(ctx, "ping", map[string]any{
				"local": at(pr.kernel, 0), "dst": at(pr.ours, 0), "count": 3,
			}, &pong); err != nil {
				t.Fatal("the kernel's ping of us:", err)
			}
			t.Logf("kernel's round trips: %v µs", pong.RTT)
			if err := p.write(777, 0, nil); err != nil {
				t.Fatal(err)
			}
			if f, err := p.next(777); err != nil || f.sport != 0 || len(f.payload) != 0 {
				t.Fatalf("our ping of the kernel: %+v, %v", f, err)
			}

			const count = 2000
			size := Size{Min: 64, Max: 400, BigEvery: 500, Big: 64 << 10}
			down, err := l.vm.Start("recv", map[string]any{
				"local": at(pr.kernel, 4000), "want": map[int]int{1: count},
				"rcvbuf": 4 << 20, "timeout": 10,
			})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := down.Event(ctx, "bound"); err != nil {
				t.Fatal(err)
			}
			up, err := l.vm.Start("send", map[string]any{
				"local": at(pr.kernel, 4001), "dst": at(pr.ours, 5000),
				"flow": 2, "count": count, "size": size,
			})
			if err != nil {
				t.Fatal(err)
			}
			sent := make(chan error, 1)
			go func() {
				for n := range count {
					if err := p.write(5000, 4000, Sign(nil, 1, uint64(n), size.Of(n))); err != nil {
						sent <- err
						return
					}
				}
				sent <- nil
			}()
			c := NewChecker(map[uint32]int{2: count})
			for c.Left() > 0 {
				f, err := p.next(5000)
				if err != nil {
					t.Fatal(err, c.Report())
				}
				c.Add(f.payload)
			}
			if err := c.Report().Err(); err != nil {
				t.Fatal("from the kernel:", err)
			}
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
			var r Report
			if err := down.Wait(ctx, &r); err != nil {
				t.Fatal(err)
			}
			if err := r.Err(); err != nil {
				t.Fatal("to the kernel:", err)
			}
			if err := up.Tell(ctx); err != nil {
				t.Fatal(err)
			}
			var s struct{ Seconds float64 }
			if err := up.Wait(ctx, &s); err != nil {
				t.Fatal(err)
			}
			t.Logf("%d each way: kernel received in %.2f s, sent in %.2f s", count, r.Seconds, s.Seconds)
		})
	}
}

// Congestion as the kernel does it, both ways, without rdsd.
func TestBarePeerCongestion(t *testing.T) {
	l := needLab(t)
	ctx := limited(t, 30*time.Second)
	const count = 200
	size := Size{Min: 500, Max: 500}
	pr := pairs[0]
	p, err := newBarePeer(l.ns, pr.ours, pr.kernel)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	if err := p.dial(); err != nil {
		t.Fatal(err)
	}

	port := newPort()
	down := kernelRecv(ctx, t, l, map[string]any{
		"local": at(pr.kernel, port), "want": map[int]int{1: count},
		"rcvbuf": 8192, "timeout": 20, "start_paused": true,
	})
	for n := range count {
		if err := p.write(6000, port, Sign(nil, 1, uint64(n), 500)); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.awaitMap(port, true); err != nil {
		t.Fatal(err)
	}
	if err := down.Tell(ctx); err != nil {
		t.Fatal(err)
	}
	if err := p.awaitMap(port, false); err != nil {
		t.Fatal(err)
	}
	var r Report
	if err := down.Wait(ctx, &r); err != nil || r.Err() != nil {
		t.Fatal(err, r.Err())
	}

	if err := p.congest(6000); err != nil {
		t.Fatal(err)
	}
	up := kernelSend(ctx, t, l, map[string]any{
		"local": at(pr.kernel, newPort()), "dst": at(pr.ours, 6000),
		"flow": 2, "count": count, "size": size, "nonblock": true,
	})
	if _, err := up.Event(ctx, "congested"); err != nil {
		t.Fatal(err)
	}
	if err := p.congest(0); err != nil {
		t.Fatal(err)
	}
	if s := release(ctx, t, up); s.Sent != count || s.ENOBUFS == 0 || s.Wakes == 0 {
		t.Fatalf("the kernel's sender: %+v", s)
	}
}

// Each tool must do the harm it is named for, or tests built on it prove nothing.
func TestTools(t *testing.T) {
	l := needLab(t)
	ctx := limited(t, time.Minute)
	pr := pairs[0]
	linked := func() *barePeer {
		p, err := newBarePeer(l.ns, pr.ours, pr.kernel)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.dial(); err != nil {
			t.Fatal(err)
		}
		if err := p.write(777, 0, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := p.next(777); err != nil {
			t.Fatal("ping:", err)
		}
		return p
	}
	linkDies := func(p *barePeer, why string) {
		t.Helper()
		select {
		case <-p.down:
		case <-time.After(10 * time.Second):
			t.Errorf("%s leaves the connection alone", why)
		}
		p.close()
	}

	p := linked()
	if err := l.vm.ResetAll(ctx); err != nil {
		t.Fatal(err)
	}
	linkDies(p, "ResetAll")

	p = linked()
	if err := l.vm.ReloadRDS(ctx); err != nil {
		t.Fatal(err)
	}
	linkDies(p, "ReloadRDS")
	counters, err := l.vm.Counters(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(counters) < 41 || counters["recv_ping"] != 0 {
		t.Errorf("counters after a reload: %v", counters)
	}

	for name, shape := range map[string]func(context.Context, ...string) error{
		"Netem": l.vm.Netem, "NetemIn": l.vm.NetemIn,
	} {
		if err := shape(ctx, "loss", "100%"); err != nil {
			t.Fatal(err)
		}
		if p, err := newBarePeer(l.ns, pr.ours, pr.kernel); err != nil {
			t.Error(err)
		} else if p.timeout = 300 * time.Millisecond; p.dial() == nil {
			t.Errorf("%s loss 100%%: the kernel still answers", name)
			p.close()
		} else {
			p.close()
		}
		if err := shape(ctx); err != nil {
			t.Fatal(err)
		}
		linked().close()
	}

	c, err := StartCapture(l.ns)
	if err != nil {
		t.Fatal(err)
	}
	linked().close()
	c.Stop()
	path := t.TempDir() + "/wire.pcap"
	if err := c.Save(path); err != nil {
		t.Fatal(err)
	}
	if raw, err := os.ReadFile(path); err != nil || !bytes.Contains(raw, []byte{0x40, 0x01}) {
		t.Errorf("capture of %d bytes without a frame of port 16385: %v", len(raw), err)
	}
}
