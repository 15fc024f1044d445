package adversary

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/blk/nbd"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// The victims are one process of a user of its own. All that they send is
// signed and numbered, each datagram that was accepted must have one outcome,
// delivered, and each block must be what was written last.

// victimsOrder says where they live.
type victimsOrder struct {
	SocketA, SocketB string
	A, B             netip.Addr
	Pages            [2]string // of the daemons
	URI              string    // of a mapping
}

// victimsReport is what happened in a phase.
type victimsReport struct {
	Rows   map[string]row
	Stalls []span // round trips of the probe that took longer than stallFrom
	Own    []span // the victims' process itself was late, see control
	Stood  []look // what the daemons said meanwhile, see witness
	Errors []string
	Ports  []netip.AddrPort // sockets that anybody may send to
	Done   map[string]int   // what was done since the beginning
}

const (
	stallFrom = 50 * time.Millisecond
	patience  = 30 * time.Second // after this something is lost
)

type victims struct {
	victimsOrder
	ctx  context.Context
	stop context.CancelFunc // senders
	wg   sync.WaitGroup     // senders
	over context.CancelFunc // everything
	life context.Context

	mu    sync.Mutex
	rtt   map[string][]float64 // guarded by mu
	now   victimsReport        // guarded by mu
	done  map[string]int       // guarded by mu
	flows []*flow

	looked int64 // guarded by mu; when control last told something

	probed atomic.Int64 // when the probe's round trip under way began
}

func victimsMain(in *bufio.Scanner) error {
	v := &victims{rtt: map[string][]float64{}, done: map[string]int{}}
	if err := order(&v.victimsOrder); err != nil {
		return err
	}
	v.life, v.over = context.WithCancel(context.Background())
	v.ctx, v.stop = context.WithCancel(v.life)
	if err := v.begin(); err != nil {
		return err
	}
	for in.Scan() {
		if in.Text() == "end" {
			v.stop()
			v.wg.Wait()
			for _, f := range v.flows {
				f.settle(v)
			}
		}
		if err := answerJSON(v.take()); err != nil {
			return err
		}
	}
	v.over()
	return nil
}

func (v *victims) wrong(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.now.Errors) < 20 {
		v.now.Errors = append(v.now.Errors, fmt.Sprintf(format, args...))
	}
}

func (v *victims) timed(name string, begun int64) {
	end := monotonic()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.rtt[name] = append(v.rtt[name], float64(end-begun)/1e3)
	v.done[name]++
	if d := end - begun; name == "probe" && d > int64(stallFrom) {
		v.now.Stalls = append(v.now.Stalls, span{begun, end, d})
	}
}

func (v *victims) take() victimsReport {
	v.mu.Lock()
	defer v.mu.Unlock()
	r := v.now
	if now := monotonic(); v.looked > 0 && now-v.looked > int64(lateFrom) {
		r.Own = append(r.Own, span{v.looked, now, now - v.looked})
	}
	r.Rows, r.Done = map[string]row{}, map[string]int{}
	for name, list := range v.rtt {
		r.Rows[name] = distribution(list)
	}
	for name, n := range v.done {
		r.Done[name] = n
	}
	v.rtt, v.now = map[string][]float64{}, victimsReport{Ports: v.now.Ports}
	return r
}

// begin starts all of them and returns when each has done something.
func (v *victims) begin() error {
	dial := func(path string, f rdsd.FrontEnd) (*rdsd.Client, error) { return rdsd.Dial(path, rdsd.WithFrontEnd(f)) }
	ringsA, err := dial(v.SocketA, rdsd.Rings)
	if err != nil {
		return err
	}
	ringsB, _ := dial(v.SocketB, rdsd.Rings)
	streamA, _ := dial(v.SocketA, rdsd.GRPC)
	streamB, _ := dial(v.SocketB, rdsd.GRPC)

	if err := v.control(); err != nil {
		return err
	}
	if err := v.pingPong("probe", time.Millisecond, ringsA, ringsB); err != nil {
		return err
	}
	if err := v.pingPong("grpc", 5*time.Millisecond, streamA, streamB); err != nil {
		return err
	}
	for i, f := range []struct {
		from, to *rdsd.Client
		at       [2]netip.Addr
	}{
		{ringsA, ringsB, [2]netip.Addr{v.A, v.B}}, {ringsB, ringsA, [2]netip.Addr{v.B, v.A}},
		{streamA, ringsB, [2]netip.Addr{v.A, v.B}}, {ringsB, streamA, [2]netip.Addr{v.B, v.A}},
		{ringsA, ringsA, [2]netip.Addr{v.A, v.A}},
	} {
		if err := v.flow(uint32(i+1), f.from, f.to, f.at); err != nil {
			return err
		}
	}
	v.wg.Go(func() { v.newcomers(ringsA, streamB) })
	v.wg.Go(v.witness)
	return v.volume()
}

// control makes a round trip each millisecond as the probe does, goroutines, sleep
// and waiting for a descriptor included, but between two of this process and past all
// daemons: what the probe's client itself takes, and the machine of it.
func (v *victims) control() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	here, there := os.NewFile(uintptr(pair[0]), "here"), os.NewFile(uintptr(pair[1]), "there")
	echo := func(f *os.File) error {
		var b [8]byte
		if _, err := f.Read(b[:]); err != nil {
			return err
		}
		_, err := f.Write(b[:])
		return err
	}
	go func() { // ends with the process
		for echo(there) == nil {
		}
	}()
	go func() { // ends with the process
		here.Write(make([]byte, 8))
		for begun := monotonic(); echo(here) == nil; {
			time.Sleep(time.Millisecond)
			now := monotonic()
			v.mu.Lock()
			v.looked = now
			if late := now - begun - int64(time.Millisecond); late > int64(lateFrom) {
				v.now.Own = append(v.now.Own, span{begun, now, late})
			}
			v.mu.Unlock()
			begun = now
		}
	}()
	return nil
}

// pingPong keeps one datagram going to and fro.
func (v *victims) pingPong(name string, pace time.Duration, at, back *rdsd.Client) error {
	a, err := at.Bind(v.ctx, netip.AddrPortFrom(v.A, 0), rdsd.WithReconnect(false))
	if err != nil {
		return err
	}
	b, err := back.Bind(v.ctx, netip.AddrPortFrom(v.B, 0), rdsd.WithReconnect(false))
	if err != nil {
		return err
	}
	v.now.Ports = append(v.now.Ports, a.LocalAddr(), b.LocalAddr())
	go func() {
		for {
			d, err := b.Recv(v.life)
			if err != nil {
				if v.life.Err() == nil {
					v.wrong("%s: the end that answers: %v", name, err)
				}
				return
			}
			if d.Addr != a.LocalAddr() {
				continue // somebody else's, who may send to it
			}
			if err := b.Send(v.life, d.Addr, d.Payload); err != nil && v.life.Err() == nil {
				v.wrong("%s: an answer: %v", name, err)
				return
			}
		}
	}()
	v.wg.Go(func() {
		for n := uint64(0); v.ctx.Err() == nil; n++ {
			begun := monotonic()
			if name == "probe" {
				v.probed.Store(begun)
			}
			ctx, cancel := context.WithTimeout(v.life, patience)
			err := a.Send(ctx, b.LocalAddr(), sign(0, n, 64))
			for err == nil {
				var d rdsd.Datagram
				if d, err = a.Recv(ctx); err != nil || d.Addr != b.LocalAddr() {
					continue
				}
				if _, got, e := unsign(d.Payload); e != nil || got != n {
					err = fmt.Errorf("number %d came where %d was due: %w", got, n, e)
				}
				break
			}
			cancel()
			if err != nil {
				v.wrong("%s: number %d: %v", name, n, err)
				return
			}
			v.timed(name, begun)
			time.Sleep(pace)
		}
	})
	return nil
}

// flow is a sender and a reader.
type flow struct {
	id  uint32
	src *rdsd.Socket
	at  atomic.Int64 // when the last one came

	mu       sync.Mutex
	accepted uint64                      // guarded by mu; numbers below it were accepted
	outcomes map[rdsd.OutcomeKind]uint64 // guarded by mu
	received uint64                      // guarded by mu; numbers below it came, in order
	tags     map[uint64]bool             // guarded by mu; accepted and without outcome
	early    map[uint64]bool             // guarded by mu; outcomes before SendBatch had returned
}

// flow sends bursts of all sizes, asks for outcomes and reads at the other end.
func (v *victims) flow(id uint32, from, to *rdsd.Client, at [2]netip.Addr) error {
	src, err := from.Bind(v.ctx, netip.AddrPortFrom(at[0], 0), rdsd.WithOutcomes(), rdsd.WithReconnect(false))
	if err != nil {
		return err
	}
	dst, err := to.Bind(v.ctx, netip.AddrPortFrom(at[1], 0), rdsd.WithReconnect(false))
	if err != nil {
		return err
	}
	f := &flow{id: id, src: src, outcomes: map[rdsd.OutcomeKind]uint64{}, tags: map[uint64]bool{}, early: map[uint64]bool{}}
	f.at.Store(monotonic())
	v.flows = append(v.flows, f)
	v.now.Ports = append(v.now.Ports, dst.LocalAddr())
	go f.read(v, dst)
	go f.hear(v)
	v.wg.Go(func() { f.send(v, dst.LocalAddr()) })
	return nil
}

func (f *flow) send(v *victims, to netip.AddrPort) {
	rng := rand.New(rand.NewPCG(uint64(f.id), 1))
	for v.ctx.Err() == nil {
		batch := make([]rdsd.Datagram, 1+rng.IntN(20))
		for i := range batch {
			batch[i] = rdsd.Datagram{Addr: to, Payload: sign(f.id, f.accepted+uint64(i), []int{16, 16, 100, 3000, 40_000}[rng.IntN(5)])}
		}
		ctx, cancel := context.WithTimeout(v.life, patience)
		n, err := f.src.SendBatch(ctx, batch)
		cancel()
		f.mu.Lock()
		f.accepted += uint64(n)
		for i := range n {
			if tag := batch[i].Tag; f.early[tag] {
				delete(f.early, tag)
			} else {
				f.tags[tag] = true
			}
		}
		f.mu.Unlock()
		if err != nil {
			v.wrong("flow %d: a send: %v", f.id, err)
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (f *flow) read(v *victims, s *rdsd.Socket) {
	for {
		d, err := s.Recv(v.life)
		if err != nil {
			if v.life.Err() == nil {
				v.wrong("flow %d: the reader: %v", f.id, err)
			}
			return
		}
		if d.Addr != f.src.LocalAddr() {
			continue
		}
		f.at.Store(monotonic())
		id, n, err := unsign(d.Payload)
		f.mu.Lock()
		if err != nil || id != f.id || n != f.received {
			v.wrong("flow %d: number %d of flow %d where %d was due, %v", f.id, n, id, f.received, err)
		}
		f.received = n + 1
		f.mu.Unlock()
		v.mu.Lock()
		v.done["datagrams"]++
		v.mu.Unlock()
	}
}

func (f *flow) hear(v *victims) {
	for o, err := range f.src.Outcomes(v.life) {
		if err != nil {
			if v.life.Err() == nil {
				v.wrong("flow %d: outcomes: %v", f.id, err)
			}
			return
		}
		if o.Kind != rdsd.Delivered {
			v.wrong("flow %d: a datagram is %v (%s)", f.id, o.Kind, o.Reason)
		}
		f.mu.Lock()
		switch {
		case f.tags[o.Tag]:
			delete(f.tags, o.Tag)
		case f.early[o.Tag]:
			v.wrong("flow %d: two outcomes of tag %d", f.id, o.Tag)
		default:
			f.early[o.Tag] = true
		}
		f.outcomes[o.Kind]++
		f.mu.Unlock()
	}
}

// settle waits until everything is decided and holds the accounts against each other.
func (f *flow) settle(v *victims) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		f.mu.Lock()
		done := len(f.tags) == 0 && f.received >= f.outcomes[rdsd.Delivered]
		f.mu.Unlock()
		if done {
			break
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	sum := uint64(0)
	for _, n := range f.outcomes {
		sum += n
	}
	if sum != f.accepted || len(f.tags) > 0 || len(f.early) > 0 || f.received != f.outcomes[rdsd.Delivered] {
		v.wrong("flow %d: %d accepted, outcomes %v, %d without one, %d for what was not accepted; %d received", f.id, f.accepted, f.outcomes, len(f.tags), len(f.early), f.received)
	}
}

// newcomers bind, send one datagram to the other node, hear of its outcome and
// leave: who comes while the adversary is there must be served too.
func (v *victims) newcomers(list ...*rdsd.Client) {
	at := []netip.Addr{v.A, v.B}
	for n := 0; v.ctx.Err() == nil; n++ {
		i := n % len(list)
		begun := monotonic()
		if err := newcomer(v.life, list[i], at[i]); err != nil {
			v.wrong("newcomer %d: %v", n, err)
			return
		}
		v.timed("newcomer", begun)
		time.Sleep(100 * time.Millisecond)
	}
}

func newcomer(ctx context.Context, c *rdsd.Client, at netip.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s, err := c.Bind(ctx, netip.AddrPortFrom(at, 0), rdsd.WithOutcomes(), rdsd.WithReconnect(false))
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.Send(ctx, s.LocalAddr(), sign(0, 1, 100)); err != nil {
		return err
	}
	for mine := false; !mine; {
		d, err := s.Recv(ctx)
		if err != nil {
			return err
		}
		if mine = d.Addr == s.LocalAddr(); !mine {
			continue // anybody may send to a port that happens to be his
		}
		if _, n, err := unsign(d.Payload); err != nil || n != 1 {
			return fmt.Errorf("number %d, %v", n, err)
		}
	}
	for o, err := range s.Outcomes(ctx) {
		if err != nil || o.Kind != rdsd.Delivered {
			return fmt.Errorf("outcome %v, %v", o, err)
		}
		break
	}
	return nil
}

const (
	victimBlock  = 4096
	victimBlocks = 512
)

// volume writes blocks and reads others, each of which must be the last written.
func (v *victims) volume() error {
	c, err := nbd.DialURI(v.ctx, v.URI)
	if err != nil {
		return err
	}
	v.wg.Go(func() {
		defer c.Close()
		rng := rand.New(rand.NewPCG(7, 7))
		last := make([]uint64, victimBlocks)
		got := make([]byte, victimBlock)
		for n := uint64(1); v.ctx.Err() == nil; n++ {
			i := rng.IntN(victimBlocks)
			begun := monotonic()
			if n%2 == 0 {
				if _, err := c.WriteAt(sign(uint32(i), n, victimBlock), int64(i)*victimBlock); err != nil {
					v.wrong("block %d: a write: %v", i, err)
					return
				}
				last[i] = n
			} else if _, err := c.ReadAt(got, int64(i)*victimBlock); err != nil {
				v.wrong("block %d: a read: %v", i, err)
				return
			} else if id, m, err := unsign(got); last[i] != 0 && (err != nil || m != last[i] || id != uint32(i)) {
				v.wrong("block %d is number %d of block %d, not %d (%v)", i, m, id, last[i], err)
			}
			v.timed("volume", begun)
			if n%100 == 0 {
				if err := c.Flush(); err != nil {
					v.wrong("a flush: %v", err)
				}
			}
			time.Sleep(2 * time.Millisecond)
		}
	})
	return nil
}

// sign makes datagram number n of a flow, size bytes at least.
func sign(flow uint32, n uint64, size int) []byte {
	p := make([]byte, max(size, 16))
	binary.BigEndian.PutUint32(p[4:], flow)
	binary.BigEndian.PutUint64(p[8:], n)
	for i := 16; i < len(p); i++ {
		p[i] = byte(uint64(i) * (n + 1))
	}
	binary.BigEndian.PutUint32(p, crc32.ChecksumIEEE(p[4:]))
	return p
}

// unsign takes a payload apart and checks its hash.
func unsign(p []byte) (flow uint32, n uint64, err error) {
	if len(p) < 16 || crc32.ChecksumIEEE(p[4:]) != binary.BigEndian.Uint32(p) {
		return 0, 0, fmt.Errorf("%d bytes that nobody signed", len(p))
	}
	return binary.BigEndian.Uint32(p[4:]), binary.BigEndian.Uint64(p[8:]), nil
}
