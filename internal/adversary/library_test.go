package adversary

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/roce"
	"github.com/rdsd/rdsd/shm"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// TestSessionsAreLetInAtOnce: the canary's sessions are of a node each, and none waits for the
// daemon to see that the one before has ended.
func TestSessionsAreLetInAtOnce(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("elsewhere: a world has users of its own, which takes root")
	}
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s := NewStage(ctx, w.targets[0], 1)
	defer s.Clear() // of all: the daemon cannot have seen the end of any
	b := good.Addr().As4()
	for n := range byte(3) {
		b[3] = 2*n + 1
		must(t, letIn(s, netip.AddrFrom4(b)))
	}
}

// TestLibraries: what acts are made of gets where it is to get. An adversary
// that is turned away at the door shows nothing.
func TestLibraries(t *testing.T) {
	if os.Getenv(orderEnv) != "" { // the adversary's user
		var at Target
		must(t, order(&at))
		for name, f := range map[string]func(*testing.T, *Stage){
			"rings": ringsGetThere, "packets": packetsGetThere, "streams": streamsGetThere, "an rdsd that connects": peersGetThere,
			"a kernel that connects": kernelsGetThere, "a node that is connected to": answersGetThere, "volumes": raidersGetThere, "volumes over RoCE": roceRaidersGetThere, "packets of RoCE": castersGetThere, "nbd": nbdGetsThere,
			"http": httpGetsThere,
		} {
			t.Run(name, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				s := NewStage(ctx, at, uint64(len(name))) // an address of its own
				defer s.Clear()
				defer cancel()
				f(t, s)
			})
		}
		return
	}
	if os.Getuid() != 0 {
		t.Skip("elsewhere: the adversary needs a user of its own, which takes root")
	}
	w := newWorld(t)
	at, err := json.Marshal(w.targets[0])
	must(t, err)
	cmd := exec.Command(w.exe, "-test.run=^TestLibraries$", "-test.v")
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), orderEnv+"="+string(at))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: adversaryUID, Gid: adversaryUID}, Pdeathsig: syscall.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func httpGetsThere(t *testing.T, s *Stage) {
	c, err := s.http()
	must(t, err)
	io.WriteString(c, "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
	b, err := io.ReadAll(c)
	must(t, err)
	if !bytes.Contains(b, []byte("\nrdsd_")) {
		t.Fatalf("answered %q", b)
	}
}

func ringsGetThere(t *testing.T, s *Stage) {
	from, err := s.BindRing(0, 0)
	must(t, err)
	to, err := s.BindRing(0, 0)
	must(t, err)
	if len(from.Bells) != 2 {
		t.Fatalf("%d doorbells", len(from.Bells))
	}
	from.Flow(0, 1, to.Local)
	copy(from.Reg.SendArena(), "hello")
	from.Post(shm.MakeWord(shm.KindEach, 5, 1), shm.SendDesc{Gen: 1})
	from.Ring()
	var got []shm.RecvDesc
	for end := time.Now().Add(5 * time.Second); len(got) == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		got = to.Receives()
	}
	if len(got) != 1 || got[0].Src != from.Local || string(to.Reg.RecvArena()[got[0].Slot:][:5]) != "hello" {
		t.Fatalf("received %+v", got)
	}
	to.Release(got[0].Slot)
	to.Ring()
	for end := time.Now().Add(5 * time.Second); from.Events() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no event")
		}
	}
	// The word that says why the socket was closed lies where Word(10) is.
	from.Word(0).Store(math.MaxUint64)
	from.Ring()
	for end := time.Now().Add(5 * time.Second); from.Word(10).Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a tail that is none ends no socket")
		}
	}
}

func packetsGetThere(t *testing.T, s *Stage) {
	p, own, err := s.BindPackets(0, 0)
	must(t, err)
	must(t, p.Say(sendMessage(batch(0, own, 2, 10, true))))
	for got := 0; got < 2; {
		m, _, err := p.Hear()
		must(t, err)
		got += len(m.GetRecv().GetLength())
	}
}

func streamsGetThere(t *testing.T, s *Stage) {
	h, err := s.DialStream()
	must(t, err)
	id, err := h.Call(methodOpen)
	must(t, err)
	must(t, h.WriteData(id, false, Message(bindMessage(s.bind(0, 0)))))
	for {
		f, err := h.ReadFrame()
		must(t, err)
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				h.WriteSettingsAck()
			}
		case *http2.DataFrame:
			m := &rdsdv1.ServerMessage{}
			must(t, proto.Unmarshal(f.Data()[5:], m))
			if !m.HasBound() {
				t.Fatalf("answered %v", m)
			}
			return
		case *http2.RSTStreamFrame:
			t.Fatalf("reset: %v", f)
		}
	}
}

// pinged sends a ping and waits for the answer.
func pinged(t *testing.T, p *Peer) {
	t.Helper()
	must(t, p.Send(wire.Header{SPort: 77}, nil))
	for {
		h, _, err := p.Next()
		must(t, err)
		if h.Kind(true) == wire.KindPong && h.DPort == 77 {
			return
		}
	}
}

func peersGetThere(t *testing.T, s *Stage) {
	p, err := s.DialPeer(s.from(s.Allowed), 0)
	must(t, err)
	must(t, p.Greet(s.hello()))
	pinged(t, p)
}

func kernelsGetThere(t *testing.T, s *Stage) {
	p := s.kernel(0)
	if p == nil {
		t.Fatal("not greeted")
	}
	pinged(t, p)
}

func answersGetThere(t *testing.T, s *Stage) {
	from := s.from(s.Larger)
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, s.Port)))
	must(t, err)
	defer l.Close()
	r, err := s.BindRing(0, 0)
	must(t, err)
	r.Flow(0, 1, netip.AddrPortFrom(from, 5))
	r.Post(shm.MakeWord(shm.KindEach, 64, 1), shm.SendDesc{Gen: 1})
	r.Ring()
	l.SetDeadline(time.Now().Add(10 * time.Second))
	c, err := l.AcceptTCP()
	must(t, err)
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	p := &Peer{TCPConn: c, From: from}
	h := s.hello()
	h.Lanes = 1 // all comes on this one
	must(t, p.Greet(h))
	for {
		h, data, err := p.Next()
		must(t, err)
		if h.Kind(true) == wire.KindData && len(data) == 64 {
			return
		}
	}
}

func raidersGetThere(t *testing.T, s *Stage) {
	r, err := s.Raid(s.from(s.Allowed), "raider", 2)
	must(t, err)
	reads(t, s, r)
}

func roceRaidersGetThere(t *testing.T, s *Stage) {
	r, err := s.RaidRoCE(s.from(s.Allowed), "raider-roce", 2)
	must(t, err)
	reads(t, s, r)
}

// castersGetThere connects a queue pair, and has a message of it acknowledged.
func castersGetThere(t *testing.T, s *Stage) {
	c := s.cast()
	if c == nil {
		t.Fatal("no socket")
	}
	acks := make(chan roce.Syndrome, 16)
	q := s.roceUp(c, func(p *roce.Packet) {
		if p.Op == roce.Acknowledge {
			select {
			case acks <- p.Syndrome:
			default:
			}
		}
	})
	if q == nil {
		t.Fatal("not connected")
	}
	info, err := rtrswire.AppendInfoReq(nil, "caster") // nobody else's: it is there until its silence is noticed
	must(t, err)
	p := toPeer(q, roce.SendOnly, 0)
	p.AckReq, p.Payload = true, info
	for {
		must(t, c.Packet(&p))
		select {
		case a := <-acks:
			if a.IsAck() {
				return
			}
			if !a.IsRNR() { // it has still to make room
				t.Fatalf("answered %v", a)
			}
		case <-s.Ctx.Done():
			t.Fatal("no acknowledgement")
		}
		time.Sleep(time.Millisecond)
	}
}

func reads(t *testing.T, s *Stage, r *Raider) {
	t.Helper()
	id, err := r.Open(s.Export, rnbdwire.ReadWrite)
	must(t, err)
	usr := rnbdwire.IO{DeviceID: id, RW: rnbdwire.RW(rnbdwire.Read, 0), Size: 4096}
	must(t, r.Request(1, 1, rtrswire.Read, usr.Append(nil), nil, 4096))
	for {
		f, _, err := r.Cons[1].Next()
		must(t, err)
		if f.Kind == transport.OpWriteImm || f.Kind == transport.OpSendImm {
			if _, errno, _ := rtrswire.Imm(f.Imm).Done(); errno != 0 {
				t.Fatalf("errno %d", errno)
			}
			return
		}
	}
}

func nbdGetsThere(t *testing.T, s *Stage) {
	c, err := s.nbdEnter()
	must(t, err)
	_, err = c.Write(nbdRequest(nbdRead, 0x1122334455667788, 0, 512))
	must(t, err)
	head := make([]byte, 16)
	_, err = io.ReadFull(c, head)
	must(t, err)
	if !bytes.Equal(head[8:], []byte{0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88}) || !bytes.Equal(head[4:8], make([]byte, 4)) {
		t.Fatalf("answered % x", head)
	}
}
