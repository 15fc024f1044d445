package vm

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The judge is judged first: a kernel with itself, over a wire.

// TestKernelPings: two rxe devices, by the connection manager and by numbers exchanged over
// TCP.
func TestKernelPings(t *testing.T) {
	In(t, time.Minute, false, func(t *testing.T) {
		l := twoKernels(t)
		before := sent(t, l.dev)

		server := start(t, "rping", "-s", "-a", l.other.String(), "-C", "20", "-V")
		until(t, "rping listens", 20*time.Second, func() bool {
			return strings.Contains(run(t, "rdma", "resource", "show", "cm_id"), "state LISTEN")
		})
		run(t, "rping", "-c", "-a", l.other.String(), "-I", l.addr.String(), "-C", "20", "-V")
		<-server.done // its status is not 0 when the client ends first

		server = pingpong(t, l.peer, l, 200)
		client := pingpong(t, l.dev, l, 200, l.other.String())
		for _, p := range []*process{client, server} {
			if out := p.wait(30 * time.Second); !strings.Contains(out, "200 iters") {
				t.Errorf("ibv_rc_pingpong:\n%s", out)
			}
		}
		if n := sent(t, l.dev) - before; n < 600 {
			t.Errorf("%d packets have left %s: they went another way", n, l.dev)
		}
	})
}

// pingpong starts ibv_rc_pingpong on one of the link's ends; the server first.
func pingpong(t *testing.T, dev string, l link, iters int, more ...string) *process {
	t.Helper()
	addr := l.addr
	if dev == l.peer {
		addr = l.other
	}
	p := start(t, append([]string{"ibv_rc_pingpong", "-d", "rxe_" + dev, "-g", fmt.Sprint(gidIndex(t, dev, addr)),
		"-n", fmt.Sprint(iters), "-c"}, more...)...)
	if len(more) == 0 {
		until(t, "ibv_rc_pingpong listens", 20*time.Second, func() bool {
			return strings.Contains(run(t, "ss", "-Hltn", "sport = 18515"), "18515")
		})
	}
	return p
}

// TestKernelVolume: rnbd-client on a volume of rnbd-server, with keys that the server renews
// after each request and with keys that stay.
func TestKernelVolume(t *testing.T) {
	for _, invalidate := range cases([]string{"Y"}, "N") {
		t.Run("invalidate="+invalidate, func(t *testing.T) {
			In(t, 2*time.Minute, false, func(t *testing.T) {
				l := twoKernels(t)
				store := memoryDisk(t, 32<<20)
				load(t, "rtrs-server", "sess_queue_depth=64", "always_invalidate="+invalidate)
				load(t, "rnbd-server")
				load(t, "rnbd-client")
				disk := kernelMap(t, mapSpec{session: "judge", device: store, paths: []string{l.addr.String() + "@" + l.other.String()}})
				fio(t, disk, 8).wait(time.Minute)
				fileSystem(t, disk)
			})
		})
	}
}

// TestKernelNetem: what netem does to packets reaches the kernel's connections, which mend it.
// Each alone, and up to three times: ibv_rc_pingpong between two rxe of Linux 6.1 may stand still for good
// when packets are lost, of all together nearly always.
func TestKernelNetem(t *testing.T) {
	In(t, 4*time.Minute, false, func(t *testing.T) {
		l := twoKernels(t)
		for _, c := range []struct{ harm, counter string }{
			{"loss 3%", "completer_retry_err"}, {"duplicate 3%", "duplicate_request"}, {"delay 1ms reorder 3%", "out_of_seq_request"},
		} {
			before := counted(t, l, c.counter)
			for _, dev := range []string{l.dev, l.peer} {
				netem(t, "", dev, strings.Fields(c.harm)...)
			}
			tries := 1
			for ; !pingpongsEnd(t, l); tries++ {
				if tries == 3 {
					t.Fatalf("%s: ibv_rc_pingpong stood still three times", c.harm)
				}
				t.Logf("%s: ibv_rc_pingpong stands still", c.harm)
			}
			for _, dev := range []string{l.dev, l.peer} {
				netem(t, "", dev)
			}
			if n := counted(t, l, c.counter) - before; n == 0 {
				t.Errorf("%s: %s has not moved", c.harm, c.counter)
			} else {
				t.Logf("%s: %s moved by %d", c.harm, c.counter, n)
			}
		}
	})
}

// pingpongsEnd reports whether 100 messages each way come to their end.
func pingpongsEnd(t *testing.T, l link) bool {
	t.Helper()
	server := pingpong(t, l.peer, l, 100)
	client := pingpong(t, l.dev, l, 100, l.other.String())
	for _, p := range []*process{client, server} {
		if !p.ends(20 * time.Second) {
			client.kill()
			server.kill()
			return false
		}
	}
	return true
}

// counted is the sum of a counter of both ends' rxe devices.
func counted(t *testing.T, l link, counter string) (sum int) {
	t.Helper()
	for _, dev := range []string{l.dev, l.peer} {
		n, err := strconv.Atoi(read(t, "/sys/class/infiniband/rxe_"+dev+"/ports/1/hw_counters/"+counter))
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}
