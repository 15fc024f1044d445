package client

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
	"github.com/rdsd/rdsd/wire"
)

// keptStream keeps what its client is sent.
type keptStream struct {
	brittleStream
	results []any
}

func (k *keptStream) SendMsg(m any) error {
	switch m := m.(type) {
	case *outResult:
		k.results = append(k.results, m)
	case *rdsdv1.ServerMessage:
		if m.GetSendResult() != nil {
			k.results = append(k.results, m)
		}
	}
	return nil
}

// keptSocket is a bound stream without links: what is not for itself waits for ever.
func keptSocket(t *testing.T, change func(*rdsdv1.Bind)) (*sockStream, *keptStream, *world) {
	t.Helper()
	return keptSocketOf(t, newTestEngine(keptAddr, rds.DefaultConfig()), change)
}

// keptAddr is the address that such streams are bound to.
var keptAddr = netip.MustParseAddr("127.0.0.1")

// keptSocketOf is keptSocket with an engine for keptAddr.
func keptSocketOf(t *testing.T, eng datagram.Engine, change func(*rdsdv1.Bind)) (*sockStream, *keptStream, *world) {
	t.Helper()
	n := newWorld(t, config.Default(), func(netip.Addr) datagram.Engine { return eng })
	k := &keptStream{brittleStream: brittleStream{ctx: t.Context(), breaks: -1}}
	s := newSockStream(n.clients, k, config.Identity{UID: 1})
	b := clienttest.BindTo(keptAddr, 0)
	change(b)
	if err := s.bind(b); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s, k, n
}

// TestBatchThatWaitsInPart: of a batch to two peers that there is no room for, each datagram that
// was not accepted is named once, by its place in the batch, whatever its tag; a time to wait
// of a nanosecond is one too, and afterwards nothing is held for the batch.
func TestBatchThatWaitsInPart(t *testing.T) {
	s, k, n := keptSocket(t, func(b *rdsdv1.Bind) { b.SetSendBufferBytes(16 << 10) })
	before := n.deps.Memory.Used()
	for _, timeout := range []time.Duration{time.Nanosecond, 20 * time.Millisecond} {
		const all = 40
		b := &inBatch{id: 7, firstTag: 1000, wait: true, timeout: timeout, payload: make([]byte, all*1000)}
		for i := range all {
			b.lengths, b.index = append(b.lengths, 1000), append(b.index, uint32(i%2))
		}
		for i := range 2 {
			b.dests = append(b.dests, rawEndpoint{addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), addrLen: 4, port: 9})
		}
		k.results = nil
		s.send(b)
		await.Until(t, 10*time.Second, "The batch is decided.", func() bool {
			select {
			case <-s.news:
				s.wmu.Lock()
				defer s.wmu.Unlock()
				if err := s.write(true); err != nil {
					t.Error(err)
				}
			default:
			}
			s.answer()
			return len(k.results) > 0
		})
		m, ok := k.results[0].(*rdsdv1.ServerMessage)
		if !ok {
			t.Fatalf("%v: all of it was accepted", timeout)
		}
		r := m.GetSendResult()
		decided := map[uint32]bool{}
		for _, e := range r.GetErrors() {
			if syscall.Errno(e.GetErrno()) != syscall.ETIMEDOUT {
				t.Errorf("%v: %v", timeout, e)
			}
			for i := e.GetIndex(); i < e.GetIndex()+e.GetCount(); i++ { // neighbours that were refused in one stretch are one error
				if i >= all || decided[i] {
					t.Errorf("%v: %v", timeout, e)
				}
				decided[i] = true
			}
		}
		if n := int(r.GetAccepted()); n+len(decided) != all || timeout == time.Nanosecond && n == 0 || len(decided) == 0 || r.GetId() != 7 {
			t.Errorf("%v: %d were accepted, %d refused of %d", timeout, n, len(decided), all)
		}
		if s.windowN != 0 || s.windowB != 0 || s.windowSize != 0 {
			t.Errorf("%v: %d batches of %d bytes are still in the window", timeout, s.windowN, s.windowB)
		}
	}
	if held := n.deps.Memory.Used() - before; held < 0 || held > 16<<10*4 {
		t.Errorf("%d bytes are held", held)
	}
}

// TestWindowOfBatches: as many batches and bytes wait as Bound has said, and the first may be of
// any size; what it is charged comes back with it.
func TestWindowOfBatches(t *testing.T) {
	s, _, n := keptSocket(t, func(*rdsdv1.Bind) {})
	before := n.deps.Memory.Used()
	type batch struct {
		bytes int
		want  error
	}
	for what, list := range map[string][]batch{
		"large at first":        {{2 * sendWindowBytes, nil}, {1, rdserr.ErrTooMany}, {0, rdserr.ErrTooMany}},
		"to the byte":           {{1, nil}, {sendWindowBytes - 1, nil}, {1, rdserr.ErrTooMany}, {0, nil}},
		"a byte, and all":       {{1, nil}, {sendWindowBytes, rdserr.ErrTooMany}},
		"nothing, and all":      {{0, nil}, {sendWindowBytes, nil}},
		"nothing, and too much": {{0, nil}, {sendWindowBytes + 1, nil}},
	} {
		for i, b := range list {
			err := s.reserveWindow(b.bytes, 1, 0)
			if !errors.Is(err, b.want) {
				t.Errorf("%s: batch %d: %v", what, i, err)
			}
			if err != nil {
				list[i].bytes = -1
			}
		}
		for _, b := range list {
			if b.bytes >= 0 {
				s.releaseWindow(b.bytes, 1, 0)
			}
		}
		if s.windowN != 0 || s.windowB != 0 || s.windowSize != 0 || n.deps.Memory.Used() != before {
			t.Errorf("%s: %d batches, %d bytes are left, and %d are charged", what, s.windowN, s.windowB, n.deps.Memory.Used()-before)
		}
	}
	for i := range sendWindowBatches {
		if err := s.reserveWindow(0, 0, 0); err != nil {
			t.Fatalf("batch %d: %v", i, err)
		}
	}
	if err := s.reserveWindow(0, 0, 0); !errors.Is(err, rdserr.ErrTooMany) {
		t.Errorf("a batch too many: %v", err)
	}
}

// TestErrorsOfABatch: neighbours that were refused for one reason are one error; beyond a number of
// errors those of one errno are joined, and the others have no words.
func TestErrorsOfABatch(t *testing.T) {
	c := &sendCall{left: 10000}
	a, b := rdserr.With(rdserr.ErrInvalid, "a"), rdserr.With(rdserr.ErrInvalid, "b")
	for i, err := range []error{0: a, 1: a, 3: a, 4: b, 5: b, 6: rdserr.ErrTooMany} {
		if err != nil {
			c.refuse(i, err)
		}
	}
	if c.left != 10000-6 {
		t.Errorf("%d are left of 10000 when 6 were refused", c.left)
	}
	got := func() (l []string) {
		for _, e := range c.errs {
			l = append(l, fmt.Sprint(e.GetIndex(), "+", e.GetCount()))
		}
		return l
	}
	if s := fmt.Sprint(got()); s != "[0+2 3+1 4+2 6+1]" {
		t.Errorf("errors of %s", s)
	}
	i := 10
	for ; len(c.errs) < maxBatchErrors; i += 2 {
		c.refuse(i, a)
		if last := c.errs[len(c.errs)-1]; last.GetMessage() == "" || last.GetIndex() != uint32(i) {
			t.Fatalf("error %d is %v", len(c.errs), last)
		}
	}
	was := c.errs[maxBatchErrors-1]
	c.refuse(int(was.GetIndex())+1, b) // another text, the same errno
	if len(c.errs) != maxBatchErrors || was.GetCount() != 2 {
		t.Errorf("%d errors, the last is %v", len(c.errs), was)
	}
	c.refuse(i+100, b)
	last := c.errs[len(c.errs)-1]
	if len(c.errs) != maxBatchErrors+1 || last.GetIndex() != uint32(i+100) || last.GetCount() != 1 || last.GetErrno() != int32(rdserr.Errno(b)) || last.GetMessage() != "" {
		t.Errorf("%d errors, the last is %v", len(c.errs), last)
	}
}

// TestBoundSaysAll: a client is told each bound that it is held to.
func TestBoundSaysAll(t *testing.T) {
	s := &sockStream{front: newWorld(t, config.Default(), nil).clients}
	k, _, _ := keptSocket(t, func(*rdsdv1.Bind) {})
	for _, snd := range []int{4096, 1 << 20, 64 << 20} {
		b := s.bound(k.sock, rds.SocketOptions{SndBufBytes: snd, RcvBufBytes: 12345})
		want := &rdsdv1.Bound{}
		want.SetLocal(EndpointPB(k.sock.Addr()))
		want.SetSendBufferBytes(uint64(snd))
		want.SetRecvBufferBytes(12345)
		want.SetMaxDatagramBytes(uint64(min(snd, wire.MaxDatagram)))
		want.SetSendWindowBytes(sendWindowBytes)
		want.SetSendWindowBatches(sendWindowBatches)
		want.SetSendCreditBytes(uint64(min(snd, sendWindowBytes/4)))
		want.SetSendCreditDatagrams(sendCreditDatagrams)
		want.SetDaemonInstance(s.front.deps.Instance)
		want.SetDaemonVersion(b.GetDaemonVersion())
		if !proto.Equal(b, want) || b.GetDaemonVersion() == "" {
			t.Errorf("a send buffer of %d bytes: %v, want %v", snd, b, want)
		}
	}
}

// TestMaxPerUserChanges: a user may have as many sockets as the last change says.
func TestMaxPerUserChanges(t *testing.T) {
	_, _, n := keptSocket(t, func(*rdsdv1.Bind) {}) // of user 1
	bind := func() error {
		s := newSockStream(n.clients, &keptStream{brittleStream: brittleStream{ctx: t.Context(), breaks: -1}}, config.Identity{UID: 1})
		err := s.bind(clienttest.BindTo(netip.MustParseAddr("127.0.0.1"), 0))
		if err == nil {
			t.Cleanup(s.close)
		}
		return err
	}
	for _, c := range []struct {
		most int
		ok   bool
	}{{1, false}, {2, true}, {2, false}, {3, true}} {
		n.clients.SetMaxPerUser(c.most)
		if err := bind(); (err == nil) != c.ok {
			t.Errorf("at most %d: %v", c.most, err)
		}
	}
}

// TestInFlightIsNeeded: of a send arena that is needed of which something is not decided.
func TestInFlightIsNeeded(t *testing.T) {
	r := &ringSock{posts: []ringPost{{left: 0, slot: 1, bytes: 10}, {left: 2, slot: 2, bytes: 20}, {left: 1, slot: 3, bytes: 30}}}
	if got, want := fmt.Sprint(r.inFlight()), fmt.Sprint([]shm.Body{{Slot: 2, Bytes: 20}, {Slot: 3, Bytes: 30}}); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestAnswersOutOfPlace: what a client says of a pair that is not so far is an error, and of one
// that is closing it is not: it has not heard.
func TestAnswersOutOfPlace(t *testing.T) {
	mapped, open := rdsdv1.PairState_PAIR_STATE_MAPPED, rdsdv1.PairState_PAIR_STATE_OPEN
	for _, c := range []struct {
		state pairState
		end   int
		says  rdsdv1.PairState
		bad   bool
	}{
		{pairClosing, sends, mapped, false}, {pairClosing, reads, open, false},
		{pairOffered, reads, open, true}, {pairOffered, sends, open, true}, {pairSealing, sends, mapped, true},
		{pairOpening, sends, open, true}, {pairOpening, reads, mapped, true}, {pairOpen, reads, open, true}, {pairOpen, sends, mapped, true},
	} {
		p := &pair{state: c.state}
		if err := p.answered(0, c.end, c.says); errors.Is(err, rdserr.ErrInvalid) != c.bad || p.state != c.state {
			t.Errorf("in state %d, %v of end %d: %v, and it is in state %d", c.state, c.says, c.end, err, p.state)
		}
	}
	p := &pair{state: pairOffered, told: [2]bool{sends: true}}
	if err := p.answered(0, reads, mapped); !errors.Is(err, rdserr.ErrInvalid) || p.mapped[reads] {
		t.Errorf("an end has mapped what it was not offered: %v", err)
	}
	p.told[reads] = true
	if err := p.answered(0, reads, mapped); err != nil || p.state != pairOffered || !p.mapped[reads] {
		t.Errorf("one end alone has mapped it: %v, state %d", err, p.state)
	}
}

// TestOneSourceHasNoIndex: a batch of one source says so by leaving the index out; one of several
// has an entry for each datagram.
func TestOneSourceHasNoIndex(t *testing.T) {
	for sources := 1; sources <= 3; sources++ {
		var run rds.Run
		for i := range 6 {
			addToRun(&run, netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(i%sources)), []byte{byte(i)})
		}
		var b outBatch
		b.take(&run)
		m := &rdsdv1.ServerMessage{}
		if err := proto.Unmarshal(b.marshal().Materialize(), m); err != nil {
			t.Fatal(err)
		}
		want := 6
		if sources == 1 {
			want = 0
		}
		if got := m.GetRecv(); len(got.GetSource()) != sources || len(got.GetSourceIndex()) != want || len(got.GetPayload()) != 6 {
			t.Errorf("%d sources: %v", sources, got)
		}
	}
}

// TestControlOutOfPlace: a second bind and a message that says nothing end the stream.
func TestControlOutOfPlace(t *testing.T) {
	s, _, _ := keptSocket(t, func(*rdsdv1.Bind) {})
	again := &rdsdv1.ClientMessage{}
	again.SetBind(clienttest.BindTo(s.sock.Addr().Addr(), 0))
	for what, m := range map[string]*rdsdv1.ClientMessage{"a second bind": again, "nothing": {}} {
		if err := s.control(m); !errors.Is(err, rdserr.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
