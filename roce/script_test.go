package roce

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write what scripts do into them")

// script is a queue pair to which a kernel's captured packets are played, by time. A line that
// begins with ">" is done; those behind it are what came of it.
type script struct {
	t     *testing.T
	h     *host
	q     *QP
	peer  netip.AddrPort
	now   time.Duration
	name  string // of the capture
	kinds map[string]vector
	out   strings.Builder
	recvs uint64
}

// TestScripts plays testdata/*.script. What a packet of ours has in common with the kernel's that
// it stands for is said behind "like".
func TestScripts(t *testing.T) {
	names, _ := filepath.Glob("testdata/*.script")
	if len(names) < 2 {
		t.Fatalf("%d scripts", len(names))
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".script"), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			s := &script{t: t, kinds: map[string]vector{}}
			for _, v := range vectors(t) {
				s.kinds[v.name] = v
			}
			for line := range strings.Lines(string(text)) {
				line = strings.TrimSuffix(line, "\n")
				if strings.HasPrefix(line, "#") || line == "" {
					fmt.Fprintln(&s.out, line)
				} else if cmd, ok := strings.CutPrefix(line, "> "); ok {
					fmt.Fprintln(&s.out, line)
					s.do(strings.Fields(cmd))
				}
			}
			if got := s.out.String(); *update {
				if err := os.WriteFile(name, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			} else if got != string(text) {
				t.Errorf("%s is not what happens, which is\n%s", name, got)
			}
		})
	}
}

// arg is the value of name=value in f, in hex.
func (s *script) arg(f []string, name string) uint64 {
	for _, a := range f {
		if v, ok := strings.CutPrefix(a, name+"="); ok {
			n, err := strconv.ParseUint(v, 16, 64)
			if err != nil {
				s.t.Fatal(err)
			}
			return n
		}
	}
	return 0
}

// captured is packet n of client (c) or server (s).
func (s *script) captured(who, n string) (v vector, p Packet) {
	v, ok := s.kinds[s.name+" "+who+" "+n]
	if !ok {
		s.t.Fatalf("there is no packet %s of %s in %s", n, who, s.name)
	}
	if err := p.Parse(v.pkt); err != nil {
		s.t.Fatal(err)
	}
	return v, p
}

func (s *script) must(err error) {
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *script) do(f []string) {
	switch f[0] {
	case "be": // capture, our address, the peer's; number=, of both; ours= and theirs= first packets
		s.name = f[1]
		s.h = newHost(s.t, f[2], Config{MTU: 1024})
		s.peer = netip.AddrPortFrom(netip.MustParseAddr(f[3]), Port)
		n := uint32(s.arg(f, "number"))
		s.q = newQP(s.h.dev, n, QPConfig{Sends: 16, Recvs: 16, RNR: RNR(time.Millisecond), Memory: s.h.dev.memory})
		s.h.dev.qps[n] = s.q
		s.must(s.q.Init())
		s.must(s.q.Connect(Peer{Number: n, Addr: s.peer.Addr(), MTU: 1024, First: PSN(s.arg(f, "theirs")), Timeout: 19, Retry: 7, RNRRetry: 7}))
		s.must(s.q.Start(PSN(s.arg(f, "ours"))))
	case "recv":
		s.recvs++
		s.must(s.q.PostRecv(Recv{ID: s.recvs, Data: make([]byte, s.arg(f, "n"))}))
	case "expose": // key= and addr= as the kernel had them
		m := s.h.dev.memory
		key, err := m.Expose(make([]byte, s.arg(f, "n")), s.arg(f, "addr"), RemoteWrite|RemoteRead|PeerRevokes, AnyQP)
		s.must(err)
		want := uint32(s.arg(f, "key"))
		m.live[want] = m.live[key]
		m.live[want].key = want
		delete(m.live, key)
	case "in": // a captured packet
		v, p := s.captured(f[1], f[2])
		fmt.Fprintf(&s.out, "rx %s\n", show(&p))
		s.h.dev.Receive(s.now, netip.AddrPortFrom(s.peer.Addr(), v.source()), v.pkt)
	case "like": // post what the kernel had posted
		_, p := s.captured(f[1], f[2])
		op := map[Opcode]Op{SendOnly: OpSend, SendOnlyImm: OpSendImm, SendOnlyInval: OpSendInval, WriteOnly: OpWrite, WriteOnlyImm: OpWriteImm}[p.Op]
		s.must(s.q.Post(Work{ID: 100, Op: op, Piece: piece(p.Payload), Key: p.Key, Addr: p.Addr, Imm: p.Imm, Inval: p.Inval, Solicited: p.Solicited}))
	case "wait":
		d, err := time.ParseDuration(f[1])
		s.must(err)
		for end := s.now + d; s.now < end; {
			s.now = min(end, s.h.dev.Next())
			s.h.dev.Tick(s.now)
			s.sent(nil)
		}
		return
	default:
		s.t.Fatalf("what is %q?", f[0])
	}
	s.sent(f)
}

// sent shows what the queue pair sends, tells and drops.
func (s *script) sent(f []string) {
	var p Packet
	for s.h.next(s.now, &p) {
		fmt.Fprintf(&s.out, "tx %s", show(&p))
		if f != nil && f[0] == "like" {
			_, k := s.captured(f[1], f[2])
			k.Migrated = true // which cards set and rxe does not
			if fmt.Sprintf("%+v", k) == fmt.Sprintf("%+v", p) {
				fmt.Fprint(&s.out, ": the kernel's bytes")
			}
		}
		fmt.Fprintln(&s.out)
	}
	for _, why := range s.h.drops {
		fmt.Fprintf(&s.out, "drops: %v\n", why)
	}
	s.h.drops = nil
	for c, ok := s.q.Poll(); ok; c, ok = s.q.Poll() {
		fmt.Fprintf(&s.out, "%v %d: %v", c.Op, c.ID, c.Status)
		if c.Received() {
			fmt.Fprintf(&s.out, ", %d bytes", c.N)
		}
		if c.HasImm {
			fmt.Fprintf(&s.out, ", imm %08x", c.Imm)
		}
		if c.Op == OpRecvWrite {
			fmt.Fprintf(&s.out, ", to %#x with key %#x", c.Addr, c.Key)
		}
		if c.HasInval {
			fmt.Fprintf(&s.out, ", key %#x ended", c.Key)
		}
		fmt.Fprintln(&s.out)
	}
}

// show is a packet in a line.
func show(p *Packet) string {
	s := fmt.Sprintf("%v %06x", p.Op, p.PSN)
	if p.AckReq {
		s += " ask"
	}
	has := opcodes[p.Op].has
	if has&hasAETH != 0 {
		s += fmt.Sprintf(" (%v) msn %d", p.Syndrome, p.MSN)
	}
	if has&hasRETH != 0 {
		s += fmt.Sprintf(" %d bytes to %#x with key %#x", p.Len, p.Addr, p.Key)
	}
	if has&hasImm != 0 {
		s += fmt.Sprintf(" imm %08x", p.Imm)
	}
	if has&hasIETH != 0 {
		s += fmt.Sprintf(" ends %#x", p.Inval)
	}
	if has&hasPayload != 0 {
		s += fmt.Sprintf(" len %d", len(p.Payload))
	}
	return s
}
