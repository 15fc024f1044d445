package soft

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// host is one end of a net that a test carries: a network namespace whose only way out is a
// device (TUN) that the test reads and writes packets of.
type host struct {
	tun *os.File
	ns  chan func() // run on a thread in the namespace
}

// newHost makes a namespace with an address, such as 10.9.0.1/24, at an interface of the
// given MTU.
func newHost(t testing.TB, prefix string, mtu int) *host {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a network namespace needs root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("no ip (iproute2) to set up a network namespace")
	}
	h := &host{ns: make(chan func())}
	opened := make(chan error)
	go func() {
		// Never unlocked: the thread, which is in another namespace, ends with the goroutine.
		runtime.LockOSThread()
		opened <- h.open(prefix, mtu)
		for f := range h.ns {
			f()
		}
	}()
	if err := <-opened; err != nil {
		t.Skipf("no network namespace with a TUN device: %v", err)
	}
	t.Cleanup(func() {
		h.tun.Close()
		close(h.ns)
	})
	return h
}

func (h *host) open(prefix string, mtu int) error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	req, err := unix.NewIfreq("net0")
	if err == nil {
		req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		unix.Close(fd)
		return err
	}
	h.tun = os.NewFile(uintptr(fd), "/dev/net/tun")
	return h.ip("link set lo up", "addr add "+prefix+" dev net0 nodad", fmt.Sprintf("link set net0 mtu %d up", mtu))
}

// ip runs commands of iproute2 on the calling thread.
func (h *host) ip(commands ...string) error {
	for _, c := range commands {
		if out, err := exec.Command("sh", "-c", "ip "+c).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %v %s", c, err, out)
		}
	}
	return nil
}

// do runs f in the namespace; that of the test if h is nil.
func (h *host) do(f func()) {
	if h == nil {
		f()
		return
	}
	done := make(chan struct{})
	h.ns <- func() { f(); close(done) }
	<-done
}

// faults is what the net does to packets, with probabilities.
type faults struct {
	loss, double, reorder, flip float64

	// A card cuts bursts and gives all packets the identification 0, and the peer checks the CRC
	// for that, as a kernel does: those for which it was another do not arrive.
	renumber bool
}

// net carries packets between hosts until the test ends.
type network struct {
	mu     sync.Mutex // guards all
	rnd    *rand.Rand
	faults faults
	cut    bool
	drop   func(pkt []byte) bool // which packets are lost; nil: none
	look   func(pkt []byte)      // at each packet
	held   [2][]byte             // a packet that is overtaken by the next one
	packets, lost,
	doubled, overtaken int
}

func newNetwork(t testing.TB, seed int64, a, b *host) *network {
	n := &network{rnd: rand.New(rand.NewSource(seed))}
	var done sync.WaitGroup
	for i, ends := range [2][2]*host{{a, b}, {b, a}} {
		done.Go(func() {
			buf := make([]byte, 70000)
			for {
				k, err := ends[0].tun.Read(buf)
				if err != nil {
					return
				}
				for _, p := range n.carry(i, buf[:k]) {
					ends[1].tun.Write(p)
				}
			}
		})
	}
	t.Cleanup(func() {
		a.tun.Close()
		b.tun.Close()
		done.Wait()
		t.Logf("%d packets: %d lost, %d doubled, %d overtaken", n.packets, n.lost, n.doubled, n.overtaken)
	})
	return n
}

// set changes what the net does.
func (n *network) set(f faults) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults = f
}

// watch has look called with each packet.
func (n *network) watch(look func(pkt []byte)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.look = look
}

// lose has those packets lost for which drop is true.
func (n *network) lose(drop func(pkt []byte) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.drop = drop
}

// sever cuts the net, or heals it.
func (n *network) sever(v bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = v
}

// carry returns what arrives when p was sent in a direction.
func (n *network) carry(direction int, p []byte) (out [][]byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(p) < 20 || p[0]>>4 == 4 && p[9] != unix.IPPROTO_UDP || p[0]>>4 == 6 && p[6] != unix.IPPROTO_UDP {
		return nil // neighbours' talk
	}
	if n.look != nil {
		n.look(p)
	}
	n.packets++
	f := &n.faults
	if n.cut || n.drop != nil && n.drop(p) || n.rnd.Float64() < f.loss || f.renumber && p[0]>>4 == 4 && binary.BigEndian.Uint16(p[4:]) != 0 {
		n.lost++
		return nil
	}
	p = append([]byte(nil), p...)
	if n.rnd.Float64() < f.flip {
		p[len(p)-1-n.rnd.Intn(len(p)-40)] ^= 1 << n.rnd.Intn(8)
		clearChecksum(p)
	}
	if held := n.held[direction]; held != nil {
		n.held[direction] = nil
		n.overtaken++
		out = append(out, p, held)
	} else if n.rnd.Float64() < f.reorder {
		n.held[direction] = p // until the next one: one that none follows is lost
		return nil
	} else {
		out = append(out, p)
	}
	if n.rnd.Float64() < f.double {
		n.doubled++
		out = append(out, p)
	}
	return out
}

// clearChecksum has UDP sent without one, as rxe and cards send it: then the invariant CRC
// alone protects the packet.
func clearChecksum(p []byte) {
	at := 26
	if p[0]>>4 == 6 {
		at = 46
	}
	binary.BigEndian.PutUint16(p[at:], 0)
}

// TestBurstIdentifications: a burst leaves as packets with the identifications 0, 1, 2 …, and
// one that is sent alone with 0, which is what the invariant CRC is computed for.
func TestBurstIdentifications(t *testing.T) {
	a, b := newHost(t, "10.9.0.1/24", 4200), newHost(t, "10.9.0.2/24", 4200)
	n := newNetwork(t, 1, a, b)
	var idents []uint16
	got := make(chan struct{}, 100)
	n.watch(func(p []byte) {
		if p[6]&0x40 == 0 {
			t.Error("a packet may be fragmented")
		}
		idents = append(idents, binary.BigEndian.Uint16(p[4:]))
		got <- struct{}{}
	})
	var s *socket
	var err error
	a.do(func() { s, err = openSocket(netip.MustParseAddr("10.9.0.1"), bufferBytes) })
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if !s.canSegment() {
		t.Skip("this kernel cuts no UDP messages (UDP_SEGMENT)")
	}
	var out outbox
	to := netip.MustParseAddrPort("10.9.0.2:4791")
	for range 2 {
		out.message(to, 0, 1000)
		out.piece(make([]byte, 3500))
		out.message(to, 0, 0)
		out.piece(make([]byte, 20))
	}
	if err := out.send(s); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		<-got
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if want := []uint16{0, 1, 2, 3, 0, 0, 1, 2, 3, 0}; fmt.Sprint(idents) != fmt.Sprint(want) {
		t.Errorf("identifications %v, want %v", idents, want)
	}
}

// testLog has what is logged with the test.
func testLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}
