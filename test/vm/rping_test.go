package vm

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/roce"
	"github.com/rdsd/rdsd/roce/cm"
)

const (
	rpingPort = 7174
	rpingSize = 5000 // bytes: packets first, middle and last at both MTUs
)

// TestRping: rping of rdmacm-utils over the kernel's rdma_cm and rxe, with us as either end:
// REQ, REP, RTU and DREQ, SEND, READ and WRITE in both directions.
func TestRping(t *testing.T) {
	type one struct {
		role string
		mtu  int
	}
	for _, c := range cases([]one{{"server", 1024}, {"client", 4096}}, one{"server", 4096}, one{"client", 1024}) {
		t.Run(fmt.Sprintf("%s/%d", c.role, c.mtu), func(t *testing.T) {
			between(t, time.Minute, false, topology{mtu: c.mtu + 120, inside: true}, func(t *testing.T, l []link) {
				p := newPeer(t, l[0].other, c.mtu)
				if c.role == "server" {
					rpingServer(p, l[0])
				} else {
					rpingClient(p, l[0])
				}
			})
		})
	}
}

// rpingInfo is what rping's client says of a buffer: struct rping_rdma_info.
func rpingInfo(addr uint64, key, size uint32) []byte {
	b := binary.BigEndian.AppendUint64(nil, addr)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, key), size)
}

// rpingServer serves the kernel's client: it READs the client's message, says so, and WRITEs
// it into the client's other buffer.
func rpingServer(p *peer, l link) {
	t := p.t
	const count = 20
	if err := p.cm.Listen(rpingPort); err != nil {
		t.Fatal(err)
	}
	client := start(t, "rping", "-c", "-a", l.other.String(), "-I", l.addr.String(), "-p", fmt.Sprint(rpingPort),
		"-C", fmt.Sprint(count), "-S", fmt.Sprint(rpingSize), "-V", "-v")
	p.until("a REQ", 20*time.Second, func() bool { return len(p.asked) > 0 })
	c, q := p.asked[0], p.qp()
	recv(t, q)
	first := p.dev.NewPSN()
	p.connect(q, c, first)
	if err := c.Accept(p.now(), cm.Param{QPN: q.Number(), RecvPSN: first, Reads: 1, ReadsIn: 1, RNRRetry: 7}); err != nil {
		t.Fatal(err)
	}
	p.until("established", 20*time.Second, func() bool { return p.up[c] })
	data := make([]byte, rpingSize)
	for range count {
		for _, op := range []roce.Op{roce.OpRead, roce.OpWrite} {
			addr, key, size := recvInfo(p, q)
			if size != rpingSize {
				t.Fatalf("a buffer of %d bytes", size)
			}
			p.post(q, roce.Work{Op: op, Addr: addr, Key: key, Piece: [3][]byte{data}})
			p.next(q, op)
			if op == roce.OpRead && !bytes.HasPrefix(data, []byte("rdma-ping-")) {
				t.Fatalf("what was read begins with %q", data[:16])
			}
			p.post(q, roce.Work{Op: roce.OpSend, Piece: [3][]byte{rpingInfo(0, 0, 0)}})
			p.next(q, roce.OpSend)
		}
	}
	p.until("DREQ", 20*time.Second, func() bool { _, ok := p.down[c]; return ok })
	if err := p.down[c]; err != cm.ErrPeer {
		t.Errorf("the end of the connection: %v", err)
	}
	if out := client.wait(10 * time.Second); strings.Count(out, "ping data: ") != count {
		t.Errorf("rping:\n%s", out)
	}
}

// recv posts a receive for a message of rping.
func recv(t *testing.T, q *roce.QP) []byte {
	t.Helper()
	b := make([]byte, 16)
	if err := q.PostRecv(roce.Recv{Data: b}); err != nil {
		t.Fatal(err)
	}
	received[q] = b
	return b
}

// received is the memory of the receive that is posted to a queue pair.
var received = map[*roce.QP][]byte{}

// recvInfo takes the peer's next message and posts the next receive.
func recvInfo(p *peer, q *roce.QP) (addr uint64, key, size uint32) {
	p.t.Helper()
	if c := p.next(q, roce.OpRecv); c.N != 16 {
		p.t.Fatalf("a message of %d bytes", c.N)
	}
	b := received[q]
	recv(p.t, q)
	return binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])
}

// rpingClient is a client of the kernel's server, which READs and WRITEs our memory.
func rpingClient(p *peer, l link) {
	t := p.t
	const count = 20
	server := start(t, "rping", "-s", "-a", l.addr.String(), "-p", fmt.Sprint(rpingPort),
		"-C", fmt.Sprint(count), "-S", fmt.Sprint(rpingSize), "-V", "-v")
	until(t, "rping listens", 20*time.Second, func() bool {
		return strings.Contains(run(t, "rdma", "resource", "show", "cm_id"), "state LISTEN")
	})
	q := p.qp()
	recv(t, q)
	first := p.dev.NewPSN()
	c, err := p.cm.Dial(p.now(), netip.AddrPortFrom(l.other, 0), netip.AddrPortFrom(l.addr, rpingPort), cm.Param{
		QPN: q.Number(), RecvPSN: first, MTU: p.mtuOf(l), Reads: 1, ReadsIn: 1, Retry: 7, RNRRetry: 7, Ack: 14,
	})
	if err != nil {
		t.Fatal(err)
	}
	p.until("established", 20*time.Second, func() bool {
		if err := p.down[c]; err != nil {
			t.Fatal(err)
		}
		return p.up[c]
	})
	p.connect(q, c, first)
	source, sink := make([]byte, rpingSize), make([]byte, rpingSize)
	at := []uint64{0x10000, 0x20000}
	var keys [2]uint32
	for i, b := range [][]byte{source, sink} {
		if keys[i], err = p.dev.Memory().Expose(b, at[i], []roce.Rights{roce.RemoteRead, roce.RemoteWrite}[i], roce.AnyQP); err != nil {
			t.Fatal(err)
		}
	}
	for n := range count {
		for i := range source {
			source[i] = byte('a' + (i+n)%26)
		}
		copy(source, fmt.Sprintf("rdma-ping-%d: ", n))
		source[rpingSize-1] = 0
		for i := range keys {
			p.post(q, roce.Work{Op: roce.OpSend, Piece: [3][]byte{rpingInfo(at[i], keys[i], rpingSize)}})
			p.next(q, roce.OpSend)
			recvInfo(p, q)
		}
		if !bytes.Equal(source, sink) {
			t.Fatalf("round %d: what came back differs", n)
		}
	}
	c.Disconnect(p.now())
	p.until("DREP", 20*time.Second, func() bool { _, ok := p.down[c]; return ok })
	<-server.done // its status is not 0 when the client ends first
	if out := server.said(); strings.Count(out, "server ping data: ") != count {
		t.Errorf("rping:\n%s", out)
	}
}

// mtuOf is the MTU of a packet on a link.
func (p *peer) mtuOf(l link) int {
	n := 256
	for size := 512; size <= min(deviceMTU(p.t, l.dev)-80, 4096); size *= 2 {
		n = size
	}
	return n
}

func deviceMTU(t *testing.T, dev string) (n int) {
	t.Helper()
	if _, err := fmt.Sscan(read(t, "/sys/class/net/"+dev+"/mtu"), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestPingpong: ibv_rc_pingpong of ibverbs-utils, with us as either end. It has no connection
// manager: both tell each other over TCP what their queue pairs are.
func TestPingpong(t *testing.T) {
	for _, role := range []string{"server", "client"} {
		t.Run(role, func(t *testing.T) {
			between(t, time.Minute, false, topology{inside: true}, func(t *testing.T, l []link) {
				const iters, size = 300, 10000
				p := newPeer(t, l[0].other, 1024)
				q, first := p.qp(), p.dev.NewPSN()
				var kernel *process
				var conn net.Conn
				args := []string{"ibv_rc_pingpong", "-d", "rxe_" + l[0].dev, "-g", fmt.Sprint(gidIndex(t, l[0].dev, l[0].addr)),
					"-n", fmt.Sprint(iters), "-s", fmt.Sprint(size)}
				if role == "server" {
					ln, err := net.Listen("tcp", netip.AddrPortFrom(l[0].other, 18515).String())
					if err != nil {
						t.Fatal(err)
					}
					defer ln.Close()
					kernel = start(t, append(args, l[0].other.String())...)
					if conn, err = ln.Accept(); err != nil {
						t.Fatal(err)
					}
				} else {
					kernel = start(t, args...)
					until(t, "ibv_rc_pingpong listens", 20*time.Second, func() (ok bool) {
						var err error
						conn, err = net.Dial("tcp", netip.AddrPortFrom(l[0].addr, 18515).String())
						return err == nil
					})
				}
				defer conn.Close()
				slots := make([][]byte, 8)
				for i := range slots {
					slots[i] = make([]byte, size)
					if err := q.PostRecv(roce.Recv{ID: uint64(i), Data: slots[i]}); err != nil {
						t.Fatal(err)
					}
				}
				sayPingpong(t, conn, role, q, l[0].other, first, func(number uint32, psn roce.PSN) {
					err := q.Connect(roce.Peer{Number: number, Addr: l[0].addr, MTU: 1024, First: psn, Timeout: 14, Retry: 7, RNRRetry: 7})
					if err == nil {
						err = q.Start(first)
					}
					if err != nil {
						t.Fatal(err)
					}
				})
				pingpongs(p, q, slots, iters, role == "client")
				if out := kernel.wait(20 * time.Second); !strings.Contains(out, fmt.Sprintf("%d iters", iters)) {
					t.Errorf("ibv_rc_pingpong:\n%s", out)
				}
				t.Logf("%+v", p.dev.Counters())
			})
		})
	}
}

// sayPingpong tells the kernel's program what our queue pair is, and connects it to theirs.
func sayPingpong(t *testing.T, conn net.Conn, role string, q *roce.QP, addr netip.Addr, first roce.PSN, connect func(uint32, roce.PSN)) {
	t.Helper()
	gid := addr.As16()
	own := append(fmt.Appendf(nil, "%04x:%06x:%06x:%s", 0, q.Number(), uint32(first), hex.EncodeToString(gid[:])), 0)
	theirs := make([]byte, len(own))
	say := func(b []byte) {
		if _, err := conn.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	if role == "client" { // who connects speaks first
		say(own)
	}
	if _, err := io.ReadFull(conn, theirs); err != nil {
		t.Fatal(err)
	}
	var lid, number, psn uint32
	if _, err := fmt.Sscanf(strings.ReplaceAll(string(theirs), ":", " "), "%x %x %x", &lid, &number, &psn); err != nil {
		t.Fatalf("%q: %v", theirs, err)
	}
	connect(number, roce.PSN(psn))
	if role == "client" {
		say([]byte("done\x00"))
	} else {
		say(own)
		if _, err := io.ReadFull(conn, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
	}
}

// pingpongs sends and receives so many messages in turn.
func pingpongs(p *peer, q *roce.QP, slots [][]byte, iters int, begin bool) {
	p.t.Helper()
	message := bytes.Repeat([]byte("0123456789"), len(slots[0])/10)
	sent, got := 0, 0
	send := func() {
		p.post(q, roce.Work{Op: roce.OpSend, Piece: [3][]byte{message}})
		sent++
	}
	if begin {
		send()
	}
	done := 0
	for got < iters || done < iters {
		var c roce.Completion
		p.until(fmt.Sprintf("message %d", got), 30*time.Second, func() (ok bool) { c, ok = q.Poll(); return ok })
		if c.Status != roce.OK {
			p.t.Fatalf("%+v", c)
		}
		if !c.Received() {
			done++
			continue
		}
		if got++; c.N != len(slots[c.ID]) {
			p.t.Fatalf("message %d has %d bytes", got, c.N)
		}
		if err := q.PostRecv(roce.Recv{ID: c.ID, Data: slots[c.ID]}); err != nil {
			p.t.Fatal(err)
		}
		if sent < iters {
			send()
		}
	}
}
