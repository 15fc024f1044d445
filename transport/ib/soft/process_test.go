package soft

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/transport/ib"
)

// peerEnv is set in a process that is a peer of a test: its device's address.
const peerEnv = "RDSD_SOFT_TEST_PEER"

// bePeer accepts connections for ever, and sends back what it is sent.
func bePeer(addr string) error {
	r, err := reactor.New(reactor.Options{CPU: -1})
	if err != nil {
		return err
	}
	d, err := Open(Config{Addr: netip.MustParseAddr(addr), Reactor: r})
	if err != nil {
		return err
	}
	dom, err := d.NewDomain(nil)
	if err != nil {
		return err
	}
	if _, err = d.Listen(netip.AddrPortFrom(d.cfg.Addr, testPort), func(a ib.Asked) {
		e := &echo{}
		var err error
		if e.q, err = dom.NewQP(depths, e); err == nil {
			e.slots = make([][]byte, depths.Recvs)
			for i := range e.slots {
				e.slots[i] = make([]byte, 4096)
				_, _ = e.q.Receive([]ib.Slot{{ID: uint64(i), Data: e.slots[i]}})
			}
			err = a.Accept(e.q, ib.Param{Retry: 7, RNRRetry: 7})
		}
		if err != nil {
			fmt.Println(err)
		}
	}); err != nil {
		return err
	}
	fmt.Println("ready")
	select {}
}

// echo sends back what it is sent.
type echo struct {
	q     ib.QP
	slots [][]byte
}

func (e *echo) Established() {}
func (e *echo) Ended(error)  { e.q.Disconnect() }
func (e *echo) Ready() {
	var c [16]ib.Completion
	for {
		n := e.q.Poll(c[:])
		for _, c := range c[:n] {
			switch {
			case c.Status != ib.OK:
			case c.Op == ib.Recv:
				_, _ = e.q.Post([]ib.WR{{ID: c.ID, Op: ib.Send, Flags: ib.Signal, Piece: [3][]byte{e.slots[c.ID][:c.N]}}})
			default: // it was sent, and its memory can be received into again
				_, _ = e.q.Receive([]ib.Slot{{ID: c.ID, Data: e.slots[c.ID]}})
			}
		}
		if n < len(c) {
			return
		}
	}
}

// startPeer starts a process with a device, and returns what kills it.
func startPeer(t *testing.T, addr string) (kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), peerEnv+"="+addr)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	dead := false
	kill = func() {
		if !dead {
			dead = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(kill)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the peer says %q: %v", line, err)
	}
	return kill
}

// dialPeer connects an end to the process, which gives a silent peer up soon.
func dialPeer(t *testing.T, d *Device, addr string) *end {
	t.Helper()
	e := newEnd(t, d, depths)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := d.Dial(ctx, netip.AddrPort{}, netip.AddrPortFrom(netip.MustParseAddr(addr), testPort), e.q, ib.Param{Retry: 0, RNRRetry: 7}); err != nil {
		t.Fatal(err)
	}
	return e
}

// roundTrip has the process send back what it is sent.
func (e *end) roundTrip(n int) {
	e.t.Helper()
	data := make([]byte, 4096)
	for i := range n {
		want := pattern(1+i*37%4096, i)
		if k, err := e.q.Receive([]ib.Slot{{ID: 1, Data: data}}); k != 1 || err != nil {
			e.t.Fatal(err)
		}
		e.post(ib.WR{ID: 2, Op: ib.Send, Piece: [3][]byte{want}})
		if c := e.next(); c.Status != ib.OK || c.Op != ib.Recv || string(data[:c.N]) != string(want) {
			e.t.Fatalf("message %d came back as %+v", i, c)
		}
	}
}

// TestProcesses: two processes speak with each other; when one is killed the other gives its
// connections up, and connects anew to the one that comes after it.
func TestProcesses(t *testing.T) {
	addr := local(4)
	kill := startPeer(t, addr)
	d := open(t, local(2), nil, nil)
	e := dialPeer(t, d, addr)
	e.roundTrip(300)
	kill()
	began := time.Now()
	e.post(ib.WR{ID: 3, Op: ib.Send, Piece: [3][]byte{[]byte("?")}, Flags: ib.Signal})
	if c := e.next(); c.Status != ib.RetryExceeded {
		t.Errorf("a send to a process that was killed: %+v", c)
	}
	if s, ok := errors.AsType[*ib.StatusError](e.end()); !ok || s.Status != ib.RetryExceeded {
		t.Errorf("the connection ended with %v", s)
	}
	t.Logf("a killed peer was given up after %v", time.Since(began))
	startPeer(t, addr)
	dialPeer(t, d, addr).roundTrip(20)
}

// TestPortOfAnotherProcess: the error of an address that another process has names the port
// and the kernel's own RoCE, which is what an operator meets most often.
func TestPortOfAnotherProcess(t *testing.T) {
	startPeer(t, local(5))
	_, err := Open(Config{Addr: netip.MustParseAddr(local(5)), Reactor: newReactor(t)})
	if !errors.Is(err, ErrPortTaken) || !strings.Contains(err.Error(), "rdma_rxe") {
		t.Errorf("%v, want ErrPortTaken", err)
	}
}

// TestKilledUnderLoad: the other end of many connections is killed while all of them are busy;
// all end, and nothing of them is left.
func TestKilledUnderLoad(t *testing.T) {
	addr := local(6)
	kill := startPeer(t, addr)
	d := open(t, local(2), nil, nil)
	var ends []*end
	for range 20 {
		e := dialPeer(t, d, addr)
		e.slots(32, 4096)
		for i := range 32 {
			e.post(ib.WR{ID: uint64(i), Op: ib.Send, Piece: [3][]byte{pattern(4096, i)}, Flags: ib.Signal})
		}
		ends = append(ends, e)
	}
	kill()
	for _, e := range ends {
		for range 32 { // so that something is under way at each
			if n, _ := e.q.Post([]ib.WR{{ID: 99, Op: ib.Send, Flags: ib.Signal}}); n == 0 {
				break
			}
		}
	}
	for _, e := range ends {
		e.end()
		e.close()
	}
	if s := d.State(); s.QueuePairs != 0 {
		t.Errorf("%d queue pairs are left", s.QueuePairs)
	}
}
