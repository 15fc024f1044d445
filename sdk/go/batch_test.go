package rdsd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand"
	"net/netip"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/api/rdsd/v1/fastwire"
	"github.com/rdsd/rdsd/rdserr"
)

// sentDatagram is one datagram of a message, as the daemon reads it.
type sentDatagram struct {
	to      netip.AddrPort
	payload string
}

// onWire lays a batch out and reads it back with package proto.
func onWire(t *testing.T, b *batch) []sentDatagram {
	t.Helper()
	data := b.marshal()
	var m rdsdv1.ClientMessage
	if err := proto.Unmarshal(data.Materialize(), &m); err != nil {
		t.Fatal(err)
	}
	data.Free()
	sb := m.GetSend()
	rest := sb.GetPayload()
	var out []sentDatagram
	for i, n := range sb.GetLength() {
		k := 0
		if len(sb.GetDestinationIndex()) > 0 {
			k = int(sb.GetDestinationIndex()[i])
		}
		out = append(out, sentDatagram{endpointFromProto(sb.GetDestination()[k]), string(rest[:n])})
		rest = rest[n:]
	}
	if len(rest) > 0 {
		t.Fatalf("%d bytes of the payload are in no datagram", len(rest))
	}
	return out
}

// Whatever calls gather, join and are taken back: what is written is what the others
// sent, in the order of each, and each call's tag is that of its first datagram.
func TestBatchesAgainstAModel(t *testing.T) {
	rnd := rand.New(rand.NewSource(3))
	type sender struct {
		c    *call
		sent []sentDatagram
		gone bool
	}
	for round := range 300 {
		s, sess := bareStream()
		s.cfg.outcomes = round%2 == 0
		sess.windowBatches = 1 << 20
		dests := 1 + rnd.Intn(100)
		var senders []*sender
		for i := range 1 + rnd.Intn(30) {
			k := &sender{c: newCall()}
			b := newBatch()
			b.wantOutcomes = s.cfg.outcomes
			for j := range 1 + rnd.Intn(5) {
				d := sentDatagram{netip.AddrPortFrom(peerAddr.Addr(), uint16(1+rnd.Intn(dests))), fmt.Sprint(i, ".", j, ";")}
				if rnd.Intn(4) == 0 {
					d.payload = ""
				}
				k.sent = append(k.sent, d)
				b.add(d.to, []byte(d.payload), rnd.Intn(8))
			}
			if b.wait = rnd.Intn(5) == 0; !b.wait && len(k.sent) == 1 {
				b.recycle()
				s.gatherLocked(k.c, k.sent[0].to, []byte(k.sent[0].payload))
			} else {
				s.queueLocked(b, k.c)
			}
			senders = append(senders, k)
		}
		for _, k := range senders {
			if rnd.Intn(4) == 0 {
				k.gone = true
				if err := s.giveUp(k.c, func() error { return errCanceled }); err != error(errCanceled) || k.c.undecided {
					t.Fatalf("taken back: %v, undecided %v", err, k.c.undecided)
				}
			}
		}
		at := map[*call]int{}
		tags := map[*call]uint64{}
		for {
			m := s.nextLocked(sess)
			if m == nil {
				sess.tries = 0 // as if all were answered
				if m = s.nextLocked(sess); m == nil {
					break
				}
			}
			b := m.(*batch)
			parts, tag, size := slices.Clone(b.parts), b.firstTag, b.bytes
			got := onWire(t, b)
			for _, d := range got {
				size -= len(d.payload)
			}
			if size != 0 || len(got) == 0 {
				t.Fatalf("%d datagrams; the batch counts %d bytes that are not in it", len(got), size)
			}
			for _, p := range parts {
				k := senders[slices.IndexFunc(senders, func(x *sender) bool { return x.c == p.c })]
				if k.gone || p.n != len(k.sent) || !slices.Equal(got[:p.n], k.sent) || !p.c.sent || p.c.tag != tag {
					t.Fatalf("call with %v (gone: %v, tag %d): wrote %v with tag %d", k.sent, k.gone, p.c.tag, got[:p.n], tag)
				}
				at[p.c]++
				tags[p.c] = tag
				got, tag = got[p.n:], tag+uint64(p.n)
			}
			if len(got) > 0 {
				t.Fatalf("nobody sent %v", got)
			}
		}
		for _, k := range senders {
			if want := map[bool]int{false: 1, true: 0}[k.gone]; at[k.c] != want {
				t.Fatalf("written %d times, want %d: %v", at[k.c], want, k.sent)
			}
		}
		sess.tries = 0
		for id, b := range sess.pending {
			if !b.wait {
				sess.tries++
			}
			s.result(sess, id, nil)
		}
		if s.tryq.len() != 0 || s.waitq.len() != 0 || len(s.waiters) != 0 || sess.bytes != 0 {
			t.Fatalf("left: %d tries, %d waiting, waiters %v, %d bytes", s.tryq.len(), s.waitq.len(), s.waiters, sess.bytes)
		}
	}
}

// What may join the try that is queued last: up to each limit exactly, and no further.
func TestJoinableEdges(t *testing.T) {
	for _, c := range []struct {
		what            string
		last            *batch
		window          int // of the session; 0: there is none
		n, bytes        int
		tries, joinable bool
	}{
		{"nothing is queued", nil, 0, 1, 1, false, false},
		{"an empty one", &batch{}, 0, 1, 1, true, true},
		{"it has its tags", &batch{firstTag: 1}, 0, 1, 1, true, false},
		{"all datagrams there may be", &batch{lengths: make([]uint32, maxGatherDatagrams-3)}, 0, 3, 1, true, true},
		{"one datagram more", &batch{lengths: make([]uint32, maxGatherDatagrams-3)}, 0, 4, 1, true, false},
		{"all bytes there may be", &batch{bytes: maxGatherBytes - 5}, 0, 1, 5, true, true},
		{"one byte more", &batch{bytes: maxGatherBytes - 5}, 0, 1, 6, true, false},
		{"as much as joins", &batch{}, 0, 1, maxJoinBytes, true, true},
		{"a byte more than joins", &batch{}, 0, 1, maxJoinBytes + 1, true, false},
		{"the whole window", &batch{bytes: 90}, 100, 1, 10, true, true},
		{"a byte more than the window", &batch{bytes: 90}, 100, 1, 11, true, false},
		{"a window larger than the limit", &batch{bytes: maxGatherBytes - 5}, 2 * maxGatherBytes, 1, 6, true, false},
	} {
		s, sess := bareStream()
		if sess.windowBytes = c.window; c.window == 0 {
			s.sess = nil
		}
		if c.tries {
			s.tryq.push(&batch{bytes: 7}) // an older one, which nothing joins
			s.tryq.push(c.last)
		}
		if got := s.joinableLocked(c.n, c.bytes); (got != nil) != c.joinable || got != nil && got != c.last {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}

// What a try has refused is not overtaken by what the same call sends there in a later message.
func TestTryOfSeveralMessages(t *testing.T) {
	_, _, s, st := bindFake(t)
	ds := slices.Repeat([]Datagram{{Addr: peerAddr}}, maxBatchDatagrams)
	ds = append(ds, Datagram{Addr: peerAddr}, Datagram{Addr: otherAddr}, Datagram{Addr: peerAddr}, Datagram{Addr: otherAddr})
	accepted := 0
	done := goErr(func() (err error) { accepted, err = s.TrySendBatch(testContext(t), ds); return err })
	st.sendResult(st.nextSend(), sendError(maxBatchDatagrams-1, 1, rdserr.ErrCongested))
	for range 2 { // there is room again
		b := st.nextSend()
		if len(b.GetLength()) != 1 || endpointFromProto(b.GetDestination()[0]) != otherAddr {
			t.Errorf("%d datagrams to %v", len(b.GetLength()), b.GetDestination())
		}
		st.sendResult(b)
	}
	var e *BatchError
	if err := waitErr(t, done); !errors.As(err, &e) || accepted != len(ds)-3 || len(e.Errors) != 3 {
		t.Fatalf("%d accepted: %v", accepted, err)
	}
	for i, want := range []int{-1, 0, 2} {
		if at := e.Errors[i].Index - maxBatchDatagrams; at != want || !errors.Is(e.Errors[i].Err, rdserr.ErrCongested) {
			t.Errorf("%d behind the first message: %v", at, e.Errors[i].Err)
		}
	}
}

// What found no room in time is not overtaken either: the daemon gives up before the caller does.
func TestLateBatchOfSeveralMessages(t *testing.T) {
	for _, waits := range []bool{false, true} { // it is refused at first, or waits behind another call's
		_, _, s, st := bindFake(t)
		ctx := testContext(t)
		before := make(chan error, 1)
		if waits {
			before = goErr(func() error { return s.Send(ctx, peerAddr, []byte("before")) })
			st.sendResult(st.nextSend(), sendError(0, 1, rdserr.ErrCongested))
		} else {
			before <- nil
		}
		first := make([]*rdsdv1.SendBatch, 0, 1)
		if waits {
			first = append(first, st.nextSend())
		}
		ds := slices.Repeat([]Datagram{{Addr: peerAddr}}, maxBatchDatagrams)
		ds = append(ds, Datagram{Addr: peerAddr}, Datagram{Addr: otherAddr}, Datagram{Addr: peerAddr})
		accepted := 0
		done := goErr(func() (err error) { accepted, err = s.SendBatch(ctx, ds); return err })
		b := st.nextSend()
		if !waits {
			st.sendResult(b, sendError(3, maxBatchDatagrams-3, rdserr.ErrCongested))
			b = st.nextSend()
			st.sendResult(b, sendError(0, uint32(len(b.GetLength())), rdserr.ErrTimeout))
		} else {
			st.sendResult(b, sendError(3, maxBatchDatagrams-3, rdserr.ErrTimeout))
		}
		if !b.GetWait() {
			t.Errorf("%d datagrams do not wait", len(b.GetLength()))
		}
		b = st.nextSend() // there is room again
		if len(b.GetLength()) != 1 || endpointFromProto(b.GetDestination()[0]) != otherAddr {
			t.Errorf("%d datagrams to %v", len(b.GetLength()), b.GetDestination())
		}
		st.sendResult(b)
		for _, b := range first {
			st.sendResult(b)
		}
		if err := waitErr(t, before); err != nil {
			t.Error(err)
		}
		err := waitErr(t, done)
		wantErr(t, err, rdserr.ErrTimeout)
		if be, ok := errors.AsType[*BatchError](err); !ok || accepted != 4 || len(be.Errors) != len(ds)-4 {
			t.Errorf("%d accepted: %v", accepted, err)
		}
	}
}

// A batch that is used again is an empty one.
func TestRecycledBatch(t *testing.T) {
	b := &batch{id: 1, seq: 2, firstTag: 3, deadline: time.Now(), wantOutcomes: true, wait: true, parts: []part{{&call{}, 1}}}
	b.add(peerAddr, []byte("x"), 0)
	lengths, parts := b.lengths, b.parts
	b.recycle()
	if b.id != 0 || b.seq != 0 || b.blob != nil || b.bytes != 0 || len(b.lengths)+len(b.dests)+len(b.index)+len(b.parts) != 0 ||
		b.firstTag != 0 || !b.deadline.IsZero() || b.wantOutcomes || b.wait {
		t.Errorf("%+v", b)
	}
	if cap(b.lengths) != cap(lengths) || parts[0].c != nil {
		t.Errorf("its arrays are not kept, or keep a call: %v", parts)
	}
}

// The daemon is told a little less than the caller has, by a tenth and at most 20 ms,
// never none at all.
func TestTimeoutToldToTheDaemon(t *testing.T) {
	told := func(left time.Duration) time.Duration {
		return time.Duration((&batch{deadline: time.Now().Add(left)}).timeoutNs())
	}
	if got := (&batch{}).timeoutNs(); got != 0 {
		t.Errorf("without a deadline: %d", got)
	}
	for _, left := range []time.Duration{-time.Hour, 0} {
		if got := told(left); got != 1 {
			t.Errorf("with %v left: %v", left, got)
		}
	}
	if got := told(time.Hour); got > time.Hour-20*time.Millisecond || got < time.Hour-time.Minute {
		t.Errorf("with an hour left: %v", got)
	}
	if got := told(100 * time.Second); got > 100*time.Second-20*time.Millisecond || got < 95*time.Second {
		t.Errorf("with 100 s left: %v", got)
	}
	if got := told(150 * time.Millisecond); got > 135*time.Millisecond || got < 1 {
		t.Errorf("with 150 ms left: %v", got)
	}
}

// A call is told once, and not at all when it has left.
func TestCallFinishesOnce(t *testing.T) {
	c := &call{done: make(chan struct{}, 1), batch: &batch{}}
	c.finish()
	<-c.done
	c.finish()
	if len(c.done) != 0 || c.batch != nil || !c.finished {
		t.Errorf("told again: %+v", c)
	}
	c = &call{done: make(chan struct{}, 1), abandoned: true}
	c.finish()
	if len(c.done) != 0 || !c.finished {
		t.Errorf("told though it left: %+v", c)
	}
	c = newCall()
	c.err, c.errs, c.tag, c.sent, c.undecided = errLost, []sendErr{{1, 1, errLost}}, 4, true, true
	errs := c.errs
	c.recycle()
	if c.err != nil || len(c.errs) != 0 || c.tag != 0 || c.sent || c.undecided || errs[0].err != nil || c.done == nil {
		t.Errorf("used again as %+v", c)
	}
}

// What a daemon says of datagrams that are not there concerns nobody, a run that is too
// long ends with its batch, and a refusal without an errno is one.
func TestOddResults(t *testing.T) {
	for _, c := range []struct {
		index, count uint32
		errno        *rdserr.Error
		want         string
	}{
		{0, 1, rdserr.ErrPerm, "[{0 1}]"},
		{2, 1, rdserr.ErrPerm, "[{2 1}]"},
		{2, 0, rdserr.ErrPerm, "[{2 1}]"}, // at least the one it names
		{1, 2, rdserr.ErrPerm, "[{1 2}]"},
		{1, 9, rdserr.ErrPerm, "[{1 2}]"},
		{3, 1, rdserr.ErrPerm, "[]"},
		{4, 1, rdserr.ErrPerm, "[]"},
		{0, 3, nil, "[{0 3}]"},
	} {
		s, sess := bareStream()
		k := newCall()
		b := newBatch()
		b.wantOutcomes = true
		for range 3 {
			b.add(peerAddr, []byte("x"), 0)
		}
		s.queueLocked(b, k)
		if s.nextLocked(sess) == nil {
			t.Fatal("nothing to write")
		}
		e := &rdsdv1.SendError{}
		e.SetIndex(c.index)
		e.SetCount(c.count)
		if c.errno != nil {
			e.SetErrno(int32(c.errno.Errno))
		}
		s.result(sess, b.id, []*rdsdv1.SendError{e})
		<-k.done
		got, refused := "[", 0
		for i, r := range k.errs {
			if i > 0 {
				got += " "
			}
			got += fmt.Sprint("{", r.index, " ", r.count, "}")
			refused += r.count
			if c.errno != nil && !errors.Is(r.err, c.errno) || r.err == nil {
				t.Errorf("%+v: refused with %v", c, r.err)
			}
		}
		if got += "]"; got != c.want {
			t.Errorf("%d from %d: refused %s, want %s", c.count, c.index, got, c.want)
		}
		left := 0
		for _, r := range s.undecid.runs {
			left += int(r.count)
		}
		if left != 3-refused {
			t.Errorf("%d from %d: %d wait for an outcome, want %d", c.count, c.index, left, 3-refused)
		}
	}
}

// A datagram of exactly the largest size goes, one of a byte more is refused in words
// that say both; where the largest is not known the daemon decides.
func TestRefusedWithoutAsking(t *testing.T) {
	s := &Socket{}
	any4, any6 := netip.MustParseAddrPort("0.0.0.0:1"), netip.MustParseAddrPort("[::]:1")
	for _, c := range []struct {
		max, n int
		dst    netip.AddrPort
		want   error
	}{
		{100, 100, peerAddr, nil}, {100, 101, peerAddr, rdserr.ErrTooLarge}, {0, 1 << 30, peerAddr, nil}, {1, 1, peerAddr, nil},
		{1, 2, peerAddr, rdserr.ErrTooLarge}, {100, 0, any4, rdserr.ErrDestination}, {100, 0, any6, rdserr.ErrDestination},
		{100, 0, netip.AddrPort{}, rdserr.ErrDestination},
	} {
		s.maxBytes = c.max
		if err := s.refuseLocked(c.dst, c.n); !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%d bytes of %d to %v: %v, want %v", c.n, c.max, c.dst, err, c.want)
		}
	}
	s.over = errLost
	if err := s.refuseLocked(netip.AddrPort{}, 0); err != error(errLost) {
		t.Errorf("a socket that is over: %v", err)
	}
}

// The payload of a batch may come in any pieces and any expectation of its size.
func TestBatchAppend(t *testing.T) {
	for _, reserve := range []int{0, 1, 100, 1 << 17} {
		b := newBatch()
		var want []byte
		for i := range 200 {
			p := bytes.Repeat([]byte{byte(i)}, i*7%1500)
			want = append(want, p...)
			b.append(p, reserve)
		}
		if !bytes.Equal(*b.blob, want) {
			t.Errorf("with %d bytes expected: %d bytes, want %d", reserve, len(*b.blob), len(want))
		}
		b.recycle()
	}
}

// A call whose result comes as it gives up has its result, not the end of its context.
func TestResultBeforeGivingUp(t *testing.T) {
	s, sess := bareStream()
	k := newCall()
	s.gatherLocked(k, peerAddr, nil)
	b := s.nextLocked(sess).(*batch)
	s.result(sess, b.id, nil)
	if err := s.giveUp(k, func() error { return errCanceled }); err != nil || k.abandoned || len(k.done) != 0 {
		t.Errorf("%v, abandoned %v", err, k.abandoned)
	}
	// One that was written is undecided, and its result later is nobody's.
	k = newCall()
	s.gatherLocked(k, peerAddr, nil)
	b = s.nextLocked(sess).(*batch)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.await(ctx, k); !errors.Is(err, context.Canceled) || !k.undecided || !k.abandoned {
		t.Errorf("%v, undecided %v", err, k.undecided)
	}
	s.result(sess, b.id, nil)
	if len(k.done) != 0 || len(sess.pending) != 0 || sess.tries != 0 {
		t.Errorf("told though it left; %d pending, %d tries", len(sess.pending), sess.tries)
	}
}

// TestBatchesAreUsedAgain: batches come back from their pool, but for those with more
// datagrams than a message of ours.
func TestBatchesAreUsedAgain(t *testing.T) {
	for n, want := range map[int]bool{maxBatchDatagrams: true, maxBatchDatagrams + 1: false} {
		seen, again := map[*batch]bool{}, false
		for range 100 {
			b := newBatch()
			again = again || seen[b]
			seen[b] = true
			b.lengths = make([]uint32, 0, n)
			b.recycle()
		}
		if again != want {
			t.Errorf("with room for %d datagrams: used again %v", n, again)
		}
	}
}

// TestCutFields: a field or a result that ends before its last byte is none.
func TestCutFields(t *testing.T) {
	field := append([]byte{3}, "abcd"...)
	for n := range field {
		body, rest, ok := fastwire.Cut(field[:n])
		if want := n >= 4; ok != want || ok && (string(body) != "abc" || string(rest) != "abcd"[3:n-1]) {
			t.Errorf("%d bytes: %q, %q, %v", n, body, rest, ok)
		}
	}
	if body, rest, ok := fastwire.Cut([]byte{0}); !ok || len(body)+len(rest) != 0 {
		t.Errorf("a field of nothing: %q, %q, %v", body, rest, ok)
	}
	result := []byte{fastwire.ResultID, 0x87, 1, fastwire.ResultAccepted, 5}
	for n, want := range []uint64{0, 1 << 63, 1 << 63, 135, 1 << 63, 135} {
		if id, ok := parsePlainResult(result[:n]); ok != (want < 1<<63) || ok && id != want {
			t.Errorf("%d bytes of a result: %d, %v", n, id, ok)
		}
	}
	if _, ok := parsePlainResult([]byte{fastwire.ResultID, 1, 77, 1}); ok {
		t.Error("a result with something else in it")
	}
}
