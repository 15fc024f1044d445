package client

import (
	"errors"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
)

// encoded is a message as it comes.
func encoded(t *testing.T, m proto.Message) mem.BufferSlice {
	t.Helper()
	raw, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return mem.BufferSlice{mem.SliceBuffer(raw)}
}

// crowd is a batch of n empty datagrams to as many destinations, of which the last is none.
func crowd(n int) *rdsdv1.SendBatch {
	s := &rdsdv1.SendBatch{}
	s.SetId(9)
	s.SetLength(make([]uint32, n))
	var ends []*rdsdv1.Endpoint
	index := make([]uint32, n)
	for i := range n {
		ends = append(ends, &rdsdv1.Endpoint{})
		index[i] = uint32(i)
	}
	s.SetDestination(ends)
	s.SetDestinationIndex(index)
	return s
}

func sending(s *rdsdv1.SendBatch) *rdsdv1.ClientMessage {
	m := &rdsdv1.ClientMessage{}
	m.SetSend(s)
	return m
}

// TestRequestsAreShort: two bytes of a list of messages become a hundred when they are read, so
// the request of a call, and what a socket asks for beside sending, is short.
func TestRequestsAreShort(t *testing.T) {
	for _, c := range []struct {
		either int
		ok     bool
	}{{10_000, true}, {40_000, false}} {
		r := &rdsdv1.TraceRequest{}
		for range c.either {
			r.SetEither(append(r.GetEither(), &rdsdv1.Endpoint{}))
		}
		got := &rdsdv1.TraceRequest{}
		err := datagramCodec{}.Unmarshal(encoded(t, r), got)
		if c.ok && (err != nil || len(got.GetEither()) != c.either) || !c.ok && (!errors.Is(err, rdserr.ErrTooLarge) || len(got.GetEither()) != 0) {
			t.Errorf("a request with a list of %d: %v, and %d are read", c.either, err, len(got.GetEither()))
		}
	}
	for _, c := range []struct {
		bytes int
		ok    bool
	}{{maxPlainBytes - 100, true}, {maxPlainBytes, false}} {
		q := &rdsdv1.CongestedQuery{}
		q.SetDestination(&rdsdv1.Endpoint{})
		q.GetDestination().SetAddress(make([]byte, c.bytes))
		m := &rdsdv1.ClientMessage{}
		m.SetCongested(q)
		var in inMsg
		if err := in.unmarshal(encoded(t, m)); (err == nil) != c.ok || !c.ok && !errors.Is(err, rdserr.ErrTooLarge) {
			t.Errorf("a question of %d bytes: %v", c.bytes, err)
		}
		if c.ok && !proto.Equal(in.msg, m) {
			t.Errorf("a question of %d bytes is not there when it is read", c.bytes)
		}
	}
}

// TestForeignRequestsAreShort: a name to look for health or reflection is short: it stands as long as its call.
func TestForeignRequestsAreShort(t *testing.T) {
	for _, c := range []struct {
		name int
		ok   bool
	}{{100, true}, {maxForeignBytes - 3, true}, {maxForeignBytes, false}} {
		r := &healthpb.HealthCheckRequest{Service: strings.Repeat("n", c.name)}
		got := &healthpb.HealthCheckRequest{}
		err := datagramCodec{}.Unmarshal(encoded(t, r), got)
		if c.ok && (err != nil || !proto.Equal(r, got)) || !c.ok && (!errors.Is(err, rdserr.ErrTooLarge) || got.GetService() != "") {
			t.Errorf("a name of %d bytes: %v, and %d are read", c.name, err, len(got.GetService()))
		}
	}
}

// TestRequestBytes: no request becomes more than is thought.
func TestRequestBytes(t *testing.T) {
	for name, c := range map[string]struct {
		field protowire.Number
		into  proto.Message
	}{
		"endpoints": {3, &rdsdv1.TraceRequest{}},
		"paths":     {4, &rdsdv1.VolumeMapRequest{}},
		"words":     {9, &rdsdv1.VolumeExportRequest{}},
		"unknown":   {99, &rdsdv1.PingRequest{}},
	} {
		var raw []byte
		for entry := protowire.AppendBytes(protowire.AppendTag(nil, c.field, protowire.BytesType), nil); len(raw)+len(entry) <= maxPlainBytes; {
			raw = append(raw, entry...)
		}
		heap := func() int64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		before := heap()
		if err := (datagramCodec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)}, c.into); err != nil {
			t.Fatal(err)
		}
		took, most := heap()-before, RequestBytes(int64(len(raw)+messageHead))
		t.Logf("%s: %d bytes become %d, at most %d", name, len(raw), took, most)
		if took > most {
			t.Errorf("%s: %d bytes become %d, at most %d may be", name, len(raw), took, most)
		}
		runtime.KeepAlive(c.into)
		runtime.KeepAlive(raw)
	}
	if RequestBytes(0) != 0 || RequestBytes(messageHead) != 0 || RequestBytes(messageHead+maxPlainBytes+1) != 0 {
		t.Error("what is not read becomes something")
	}
}

// TestBesideBatches: a message that is a batch when it is measured and another when it is read, as
// the last body counts, is as short as that one may be.
func TestBesideBatches(t *testing.T) {
	n := newWorld(t, config.Default(), func(netip.Addr) datagram.Engine {
		return newTestEngine(netip.MustParseAddr("127.0.0.1"), rds.DefaultConfig())
	})
	batch := func(n int) []byte {
		s := &rdsdv1.SendBatch{}
		s.SetDestination(crowd(n).GetDestination())
		return encoded(t, sending(s)).Materialize()
	}
	bind := &rdsdv1.ClientMessage{}
	bind.SetBind(clienttest.BindTo(netip.MustParseAddr("127.0.0.1"), 0))
	ask := &rdsdv1.ClientMessage{}
	ask.SetCongested(&rdsdv1.CongestedQuery{})
	long := &rdsdv1.ClientMessage{}
	long.SetCongested(&rdsdv1.CongestedQuery{})
	long.GetCongested().SetDestination(&rdsdv1.Endpoint{})
	long.GetCongested().GetDestination().SetAddress(make([]byte, maxPlainBytes))
	join := func(batch []byte, m *rdsdv1.ClientMessage) []byte {
		return append(batch, encoded(t, m).Materialize()...)
	}
	before := n.deps.Memory.Used()
	for what, c := range map[string]struct {
		says [][]byte
		want error
	}{
		"first":                         {[][]byte{join(batch(10_000), bind), join(nil, ask)}, nil},
		"first, longer than a bind":     {[][]byte{join(batch(40_000), bind)}, rdserr.ErrTooLarge},
		"later":                         {[][]byte{join(nil, bind), join(batch(40_000), ask), join(nil, ask)}, nil},
		"later, longer than a question": {[][]byte{join(nil, bind), join(batch(0), long)}, rdserr.ErrTooLarge},
	} {
		st := &scriptStream{ctx: t.Context(), script: c.says}
		if err := n.clients.ServeStream(st, config.Identity{UID: 1}, st); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", what, err)
		}
		if used, waiting := n.deps.Memory.Used(), n.deps.Memory.Kinds()[quota.Waiting].Used; used != before || waiting != 0 {
			t.Errorf("%s: %d bytes are held, before it %d; for sends %d", what, used, before, waiting)
		}
	}
}

// TestListsAreCharged: the lists of a batch are charged while it is there, and long ones are
// not kept, whoever read it.
func TestListsAreCharged(t *testing.T) {
	const n = maxBatchDatagrams
	node := quota.New(1<<30, nil)
	in := inMsg{account: node.Account(quota.User(1))}
	m := sending(crowd(n))
	unknown, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	for what, raw := range map[string]mem.BufferSlice{
		"by hand": encoded(t, m),
		// A field that is not known leaves it to package proto.
		"by protobuf": {mem.SliceBuffer(append(unknown, 0xf8, 0x7f, 1))},
	} {
		if err := in.unmarshal(raw); err != nil || !in.isBatch || len(in.batch.dests) != n || in.batch.refused != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if used := node.Used(); used != n*(2*numberBytes+endBytes) {
			t.Errorf("%s: %d bytes are charged", what, used)
		}
		in.release()
		if b := &in.batch; node.Used() != 0 || cap(b.dests) > keptEnds || cap(b.lengths) > keptNumbers || cap(b.index) > keptNumbers {
			t.Errorf("%s: %d bytes stay charged, and %d, %d and %d entries are kept", what, node.Used(), cap(b.dests), cap(b.lengths), cap(b.index))
		}
	}
	// What is short is kept, and costs nothing.
	if err := in.unmarshal(encoded(t, sending(crowd(100)))); err != nil || node.Used() != 0 {
		t.Errorf("a short batch: %v, %d bytes are charged", err, node.Used())
	}
	if in.release(); cap(in.batch.dests) == 0 {
		t.Error("short lists are not used again")
	}
	// Without memory the batch is refused, and so are all of its datagrams.
	poor := inMsg{account: quota.New(1<<20, nil).Account(quota.User(1))}
	if err := poor.unmarshal(encoded(t, m)); err != nil || !poor.isBatch || !errors.Is(poor.batch.refused, rdserr.ErrNoMemory) ||
		poor.batch.id != 9 || poor.batch.many != n || len(poor.batch.dests) != 0 {
		t.Errorf("without memory: %v, %v", err, poor.batch.refused)
	}
	poor.release()
	if err := poor.unmarshal(encoded(t, sending(crowd(1)))); err != nil || poor.batch.refused != nil {
		t.Errorf("the next batch: %v, %v", err, poor.batch.refused)
	}
	// A list that no batch can have is not read at all.
	for what, s := range map[string]func(*rdsdv1.SendBatch){
		"lengths":      func(s *rdsdv1.SendBatch) { s.SetLength(make([]uint32, maxListed+1)) },
		"indices":      func(s *rdsdv1.SendBatch) { s.SetDestinationIndex(make([]uint32, maxListed+1)) },
		"destinations": func(s *rdsdv1.SendBatch) { s.SetDestination(crowd(maxListed + 1).GetDestination()) },
	} {
		b := &rdsdv1.SendBatch{}
		s(b)
		if err := in.unmarshal(encoded(t, sending(b))); !errors.Is(err, rdserr.ErrTooLarge) || node.Used() != 0 {
			t.Errorf("too many %s: %v, %d bytes are charged", what, err, node.Used())
		}
	}
}

// TestBatchRefusedWhole: of a batch whose lists cannot be paid for each datagram is refused, and
// the stream goes on.
func TestBatchRefusedWhole(t *testing.T) {
	s, p := waitStream(t, func(netip.AddrPort) []*rdsdv1.ClientMessage { return nil })
	s.send(&inBatch{id: 9, refused: rdserr.ErrNoMemory, many: 7})
	said := slices.Clone(s.out)
	if err := s.answer(); err != nil {
		t.Fatal(err)
	}
	if len(p.given) != 1 || len(said) != 1 {
		t.Fatalf("given %v, said %v", p.given, said)
	}
	if e := said[0].(*rdsdv1.ServerMessage).GetSendResult().GetErrors(); len(e) != 1 || e[0].GetCount() != 7 || e[0].GetErrno() != int32(rdserr.ErrNoMemory.Errno) {
		t.Errorf("errors %v", e)
	}
}

// TestErrorsAreCharged: a batch of which every other datagram fails has an answer that is much
// larger than it. It is charged until it is written, and whoever does not read is not read.
func TestErrorsAreCharged(t *testing.T) {
	s, _ := waitStream(t, func(netip.AddrPort) []*rdsdv1.ClientMessage { return nil })
	const n = 20_000
	b := &inBatch{id: 1, lengths: make([]uint32, n), index: make([]uint32, n), dests: make([]rawEndpoint, 2)}
	b.dests[0].setAddress(s.sock.Addr().Addr().AsSlice())
	b.dests[0].port = uint32(s.sock.Addr().Port())
	b.dests[1].setAddress([]byte{1})
	for i := range b.index {
		b.index[i] = uint32(i % 2)
	}
	calls := func() int64 { return s.front.deps.Memory.Kinds()[quota.Calls].Used }
	s.wmu.Lock() // its client does not read
	s.send(b)
	each := int64(errorBytes * n / 2)
	for _, e := range s.out[0].(*heavyReply).m.(*rdsdv1.ServerMessage).GetSendResult().GetErrors()[:maxBatchErrors] {
		each += textBytes + int64(len(e.GetMessage()))
	}
	if got := calls(); got != each || s.heavyB != each {
		t.Errorf("an answer with %d errors: %d bytes are charged", n/2, got)
	}
	s.send(b)
	waits := make(chan error, 1)
	go func() { waits <- s.answer() }() // ends when the client reads
	select {
	case err := <-waits:
		t.Error("with so many answers unread the next message of the client is read")
		waits <- err
	case <-time.After(20 * time.Millisecond): // if it is late, the test sees less
	}
	s.wmu.Unlock()
	if err := <-waits; err != nil {
		t.Fatal(err)
	}
	if got := calls(); got != 0 || s.heavyB != 0 {
		t.Errorf("when all is written, %d and %d bytes are charged", got, s.heavyB)
	}
	s.send(b)
	s.close()
	if got := calls(); got != 0 {
		t.Errorf("when it is closed %d bytes are charged", got)
	}
	// Who has no memory for what may have to be said does not send so much at once.
	tight, _ := waitStream(t, func(netip.AddrPort) []*rdsdv1.ClientMessage { return nil })
	tight.memory.Grow(quota.Calls, tight.front.deps.Memory.Limit())
	tight.send(b)
	if call := tight.out[0]; tight.sock.Info().Undecided != 0 || call == nil || tight.heavyB != 0 {
		t.Errorf("without memory: %v", call)
	}
	tight.memory.Give(quota.Calls, tight.front.deps.Memory.Limit())
}

// TestOutcomesAreCharged: outcomes that were fetched and cannot be written yet are charged, and
// the list that they were in is not kept.
func TestOutcomesAreCharged(t *testing.T) {
	s, _ := waitStream(t, func(netip.AddrPort) []*rdsdv1.ClientMessage { return nil })
	s.push.outcomes = append(s.push.outcomes, make([]rds.OutcomeRun, maxOutcomeRuns)...)
	if n := s.holdOutcomes(); n != 0 {
		t.Errorf("of a short list %d bytes are charged", n)
	}
	s.push.outcomes = append(s.push.outcomes, rds.OutcomeRun{})
	n := s.holdOutcomes()
	if got := s.front.deps.Memory.Kinds()[quota.Calls].Used; n != outcomeBytes*(maxOutcomeRuns+1) || got != n {
		t.Errorf("of a long list %d bytes are charged, %d in all", n, got)
	}
	s.letGo(n)
	if got := s.front.deps.Memory.Kinds()[quota.Calls].Used; got != 0 {
		t.Errorf("%d bytes stay charged", got)
	}
}

// TestLargeMessageOfRings: the messages of a client with rings are read on the reactor, so a
// large one ends it unread.
func TestLargeMessageOfRings(t *testing.T) {
	_, cfg := startClients(t)
	r := clienttest.AttachRing(t, cfg, clienttest.BindTo(cfg.RDS.Addresses[0], 0))
	defer r.Close()
	ask := func(bytes int) *rdsdv1.ServerMessage {
		q := &rdsdv1.CongestedQuery{}
		q.SetDestination(&rdsdv1.Endpoint{})
		q.GetDestination().SetAddress(make([]byte, bytes))
		m := &rdsdv1.ClientMessage{}
		m.SetCongested(q)
		r.Ask(t, m)
		return r.Answer(t)
	}
	if a := ask(maxRingMessage - 100); a.GetCongestedResult().GetErrno() != int32(rdserr.ErrInvalid.Errno) {
		t.Errorf("a message of less than %d bytes: %v", maxRingMessage, a)
	}
	if a := ask(maxRingMessage); a.GetClosing().GetErrno() != int32(rdserr.ErrTooLarge.Errno) {
		t.Errorf("a larger one: %v", a)
	}
}
