package client

import (
	"bytes"
	"math/rand"
	"net/netip"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/google/go-cmp/cmp"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/api/rdsd/v1/fastwire"
	"github.com/rdsd/rdsd/rds"
)

func pbEndpoint(a netip.AddrPort) *rdsdv1.Endpoint {
	e := &rdsdv1.Endpoint{}
	e.SetAddress(a.Addr().AsSlice())
	e.SetPort(uint32(a.Port()))
	return e
}

func decode(t *testing.T, in *inMsg, m *rdsdv1.ClientMessage) {
	t.Helper()
	raw, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	// In two buffers, as a message that spans frames arrives.
	half := len(raw) / 2
	data := mem.BufferSlice{mem.SliceBuffer(raw[:half]), mem.SliceBuffer(raw[half:])}
	if err := (datagramCodec{}).Unmarshal(data, in); err != nil {
		t.Fatal(err)
	}
}

func TestSendBatchByHandIsTheProtobufOne(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	var in inMsg
	for range 300 {
		s := &rdsdv1.SendBatch{}
		if rng.Intn(4) > 0 {
			s.SetId(rng.Uint64() >> rng.Intn(64))
		}
		n := rng.Intn(20)
		var lengths, index []uint32
		total := 0
		for range n {
			l := rng.Intn(300)
			lengths, total = append(lengths, uint32(l)), total+l
			index = append(index, uint32(rng.Intn(200)))
		}
		s.SetLength(lengths)
		if rng.Intn(2) == 0 {
			s.SetDestinationIndex(index)
		}
		payload := make([]byte, total)
		rng.Read(payload)
		s.SetPayload(payload)
		var dests []*rdsdv1.Endpoint
		for range rng.Intn(5) {
			e := &rdsdv1.Endpoint{}
			e.SetAddress(make([]byte, []int{0, 4, 16, 7}[rng.Intn(4)]))
			e.SetPort(uint32(rng.Intn(1 << 17)))
			dests = append(dests, e)
		}
		s.SetDestination(dests)
		s.SetFirstTag(uint64(rng.Intn(1 << 20)))
		s.SetWantOutcomes(rng.Intn(2) == 0)
		s.SetWait(rng.Intn(2) == 0)
		s.SetTimeoutNs(int64(rng.Intn(3)-1) * int64(rng.Intn(1<<40)))
		s.SetResultMayWait(rng.Intn(2) == 0)
		m := &rdsdv1.ClientMessage{}
		m.SetSend(s)
		decode(t, &in, m)
		if !in.isBatch {
			t.Fatal("not taken for a batch")
		}
		if in.buf == nil {
			t.Error("the usual layout went the slow way")
		}
		var want inBatch
		want.fromProto(s)
		got := in.batch
		if got.id != want.id || got.firstTag != want.firstTag || got.want != want.want || got.wait != want.wait || got.timeout != want.timeout || got.later != want.later ||
			!bytes.Equal(got.payload, want.payload) || !cmp.Equal(got.lengths, want.lengths) && len(want.lengths) > 0 || !cmp.Equal(got.index, want.index) && len(want.index) > 0 {
			t.Fatalf("by hand %+v\nprotobuf %+v", got, want)
		}
		if len(got.dests) != len(want.dests) {
			t.Fatalf("%d destinations, want %d", len(got.dests), len(want.dests))
		}
		for i := range got.dests {
			if got.dests[i] != want.dests[i] {
				t.Fatalf("destination %d: %+v, want %+v", i, got.dests[i], want.dests[i])
			}
		}
		in.release()
	}
}

func TestOtherMessagesGoThroughProtobuf(t *testing.T) {
	m := &rdsdv1.ClientMessage{}
	c := &rdsdv1.Credit{}
	c.SetDatagrams(7)
	m.SetCredit(c)
	var in inMsg
	decode(t, &in, m)
	if in.isBatch || in.msg.GetCredit().GetDatagrams() != 7 {
		t.Errorf("%+v", in)
	}
	if err := (datagramCodec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer([]byte{0x12, 0x7f})}, &in); err == nil {
		t.Error("a truncated message was accepted")
	}
}

func TestRecvBatchByHandIsTheProtobufOne(t *testing.T) {
	rng := rand.New(rand.NewSource(2))
	var b outBatch
	for round := range 300 {
		var run rds.Run
		want := &rdsdv1.RecvBatch{}
		var payload []byte
		var lengths []uint32
		var froms []netip.AddrPort
		for range 1 + rng.Intn(40) {
			src := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(rng.Intn(1 + round%4))}), uint16(rng.Intn(3)))
			if rng.Intn(10) == 0 {
				src = netip.AddrPortFrom(netip.MustParseAddr("fd00::1"), 9)
			}
			p := make([]byte, rng.Intn(1<<uint(rng.Intn(13))))
			rng.Read(p)
			addToRun(&run, src, p)
			payload = append(payload, p...)
			lengths = append(lengths, uint32(len(p)))
			froms = append(froms, src)
		}
		b.take(&run)
		raw := b.marshal().Materialize()
		m := &rdsdv1.ServerMessage{}
		if err := proto.Unmarshal(raw, m); err != nil {
			t.Fatal(err)
		}
		got := m.GetRecv()
		for i, from := range froms {
			k := uint32(0)
			if len(got.GetSourceIndex()) > 0 {
				k = got.GetSourceIndex()[i]
			}
			if !proto.Equal(pbEndpoint(from), got.GetSource()[k]) {
				t.Fatalf("source of %d is %v, want %v", i, got.GetSource()[k], from)
			}
		}
		want.SetPayload(payload)
		want.SetLength(lengths)
		want.SetSource(got.GetSource())
		want.SetSourceIndex(got.GetSourceIndex())
		if !proto.Equal(want, got) {
			t.Fatalf("got %v\nwant %v", got, want)
		}
	}
}

// addToRun appends one datagram as the engine does, in a span of its own.
func addToRun(r *rds.Run, src netip.AddrPort, p []byte) {
	k := slices.Index(r.Sources, src)
	if k < 0 {
		k = len(r.Sources)
		r.Sources = append(r.Sources, src)
	}
	r.Index = append(r.Index, uint32(k))
	r.Lengths = append(r.Lengths, uint32(len(p)))
	r.Bytes += len(p)
	if len(p) > 0 {
		r.Spans = append(r.Spans, rds.Span{Payload: p})
	}
}

func TestSendResultByHand(t *testing.T) {
	for _, r := range []outResult{{}, {id: 1}, {1 << 63, 64}, {0, 1 << 31}} {
		m := &rdsdv1.ServerMessage{}
		if err := proto.Unmarshal(r.marshal().Materialize(), m); err != nil {
			t.Fatal(err)
		}
		if g := m.GetSendResult(); g.GetId() != r.id || g.GetAccepted() != r.accepted || len(g.GetErrors()) != 0 {
			t.Errorf("%+v became %v", r, g)
		}
	}
}

func TestBatchChecks(t *testing.T) {
	v4 := rawEndpoint{addr: netip.MustParseAddr("10.0.0.2"), addrLen: 4, port: 7}
	good := func() *inBatch {
		return &inBatch{payload: make([]byte, 5), lengths: []uint32{2, 3}, dests: []rawEndpoint{v4}}
	}
	if p := good().check(); p != "" {
		t.Fatalf("a good batch: %s", p)
	}
	for name, tc := range map[string]struct {
		change func(*inBatch)
		names  string
	}{
		"no datagrams":     {func(b *inBatch) { b.lengths = nil }, "send.length is empty"},
		"too many":         {func(b *inBatch) { b.lengths = make([]uint32, maxBatchDatagrams+1) }, "at most 65536"},
		"no destination":   {func(b *inBatch) { b.dests = nil }, "send.destination is empty"},
		"destinations":     {func(b *inBatch) { b.dests = make([]rawEndpoint, 3) }, "send.destination has 3"},
		"index count":      {func(b *inBatch) { b.index = []uint32{0} }, "send.destination_index has 1"},
		"index range":      {func(b *inBatch) { b.index = []uint32{0, 1} }, "send.destination_index[1] is 1"},
		"timeout":          {func(b *inBatch) { b.timeout = -time.Second }, "send.timeout_ns"},
		"tags":             {func(b *inBatch) { b.firstTag = 1<<64 - 1 }, "send.first_tag"},
		"payload short":    {func(b *inBatch) { b.payload = b.payload[:4] }, "adds up to 5 bytes and send.payload has 4"},
		"payload long":     {func(b *inBatch) { b.lengths = []uint32{1, 1} }, "adds up to 2 bytes and send.payload has 5"},
		"lengths overflow": {func(b *inBatch) { b.lengths = []uint32{1<<32 - 1, 6} }, "adds up to 4294967301"},
	} {
		b := good()
		tc.change(b)
		if got := b.check(); !bytes.Contains([]byte(got), []byte(tc.names)) {
			t.Errorf("%s: %q does not say %q", name, got, tc.names)
		}
	}
	for name, change := range map[string]func(*inBatch){ // as much as may be
		"as many datagrams": func(b *inBatch) { b.payload, b.lengths = nil, make([]uint32, maxBatchDatagrams) },
		"a destination each": func(b *inBatch) {
			b.dests, b.index = []rawEndpoint{v4, v4}, []uint32{1, 0}
		},
		"the last tags":         func(b *inBatch) { b.firstTag = 1<<64 - 1 - 2 },
		"the longest wait":      func(b *inBatch) { b.timeout = 1<<63 - 1 },
		"datagrams of no bytes": func(b *inBatch) { b.payload, b.lengths = nil, []uint32{0, 0} },
	} {
		b := good()
		change(b)
		if got := b.check(); got != "" {
			t.Errorf("%s: %s", name, got)
		}
	}
	for _, tc := range []struct {
		e    rawEndpoint
		want string
	}{
		{v4, ""}, {rawEndpoint{addrLen: 16, port: 65535}, ""}, {rawEndpoint{addrLen: 3}, "x.address has 3 bytes"}, {rawEndpoint{addrLen: 16, port: 65536}, "x.port is 65536"},
	} {
		if got := tc.e.problem("x"); !bytes.HasPrefix([]byte(got), []byte(tc.want)) || (tc.want == "") != (got == "") {
			t.Errorf("%+v: %q, want %q", tc.e, got, tc.want)
		}
	}
}

// TestShortWayCut holds that the short way in takes a message that was cut, at any byte and in any of its parts, exactly when package proto
// does, and reads the same: half an endpoint is not the endpoint of Nobody.
func TestShortWayCut(t *testing.T) {
	to := pbEndpoint(netip.MustParseAddrPort("[2001:db8::2]:40000"))
	raw, err := proto.Marshal(to)
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(raw) + 1 {
		want := &rdsdv1.Endpoint{}
		wantErr := proto.Unmarshal(raw[:n], want)
		e, ok := parseEndpoint(raw[:n])
		if ok != (wantErr == nil) || ok && (e.addrLen != len(want.GetAddress()) || e.port != want.GetPort()) {
			t.Errorf("%d bytes of an endpoint: %+v, %v; protobuf says %v, %v", n, e, ok, want, wantErr)
		}
	}
	for _, c := range []struct {
		port []byte
		ok   bool
	}{
		{[]byte{0xff, 0xff, 0xff, 0xff, 0x0f}, true}, // 1<<32 - 1
		{[]byte{0x80, 0x80, 0x80, 0x80, 0x10}, false},
		{[]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02}, false}, // more than 64 bits
	} {
		if e, ok := parseEndpoint(append([]byte{fastwire.EndpointPort}, c.port...)); ok != c.ok || ok && e.port != 1<<32-1 {
			t.Errorf("port % x: %d, %v", c.port, e.port, ok)
		}
		if l, ok := fastwire.Uint32s(nil, c.port); ok != c.ok || ok && (len(l) != 1 || l[0] != 1<<32-1) {
			t.Errorf("length % x: %v, %v", c.port, l, ok)
		}
	}

	s := &rdsdv1.SendBatch{}
	s.SetId(300)
	s.SetPayload([]byte("payload"))
	s.SetLength([]uint32{2, 300, 5})
	s.SetDestination([]*rdsdv1.Endpoint{to, to})
	s.SetDestinationIndex([]uint32{0, 1, 0})
	s.SetFirstTag(1 << 40)
	s.SetTimeoutNs(1 << 30)
	if raw, err = proto.Marshal(s); err != nil {
		t.Fatal(err)
	}
	for n := range len(raw) + 1 {
		want := &rdsdv1.SendBatch{}
		wantErr := proto.Unmarshal(raw[:n], want)
		var b, w inBatch
		if ok := b.parse(raw[:n]); ok != (wantErr == nil) {
			t.Errorf("%d bytes of a batch: %v; protobuf says %v", n, ok, wantErr)
		} else if w.fromProto(want); ok && (!bytes.Equal(b.payload, w.payload) || !slices.Equal(b.lengths, w.lengths) || !slices.Equal(b.dests, w.dests) ||
			!slices.Equal(b.index, w.index) || b.id != w.id || b.firstTag != w.firstTag || b.timeout != w.timeout) {
			t.Errorf("%d bytes of a batch: %+v; protobuf says %+v", n, b, w)
		}
	}
}

// Whatever arrives is refused or read as package proto reads it.
func FuzzClientMessage(f *testing.F) {
	m := &rdsdv1.ClientMessage{}
	s := &rdsdv1.SendBatch{}
	s.SetPayload([]byte("hello"))
	s.SetLength([]uint32{2, 3})
	s.SetDestination([]*rdsdv1.Endpoint{pbEndpoint(netip.MustParseAddrPort("10.0.0.2:7"))})
	m.SetSend(s)
	raw, _ := proto.Marshal(m)
	f.Add(raw)
	f.Add([]byte{fastwire.ClientSend, 2, fastwire.SendLength, 0})
	f.Fuzz(func(t *testing.T, raw []byte) {
		var in inMsg
		err := in.unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)})
		want := &rdsdv1.ClientMessage{}
		if wantErr := proto.Unmarshal(raw, want); wantErr != nil {
			return // by hand we may be content with less, never with more
		}
		if err != nil {
			t.Fatalf("protobuf reads it, we say %v", err)
		}
		if in.isBatch != (want.WhichBody() == rdsdv1.ClientMessage_Send_case) {
			t.Fatalf("isBatch %v, protobuf has %v", in.isBatch, want.WhichBody())
		}
		if !in.isBatch {
			return
		}
		var w inBatch
		w.fromProto(want.GetSend())
		if in.batch.id != w.id || !bytes.Equal(in.batch.payload, w.payload) || len(in.batch.lengths) != len(w.lengths) || len(in.batch.dests) != len(w.dests) {
			t.Fatalf("by hand %+v\nprotobuf %+v", in.batch, w)
		}
		if in.batch.check() == "" { // then every datagram is within the payload
			off := 0
			for _, l := range in.batch.lengths {
				_ = in.batch.payload[off:][:l]
				off += int(l)
			}
		}
		in.release()
	})
}

// TestSendBatchOfAnotherLayout: what a client may legally say in another layout is read the slow
// way, and is the same.
func TestSendBatchOfAnotherLayout(t *testing.T) {
	usual := func() *rdsdv1.SendBatch {
		s := &rdsdv1.SendBatch{}
		s.SetId(7)
		s.SetPayload([]byte("abb"))
		s.SetLength([]uint32{1, 2})
		s.SetDestination([]*rdsdv1.Endpoint{pbEndpoint(netip.MustParseAddrPort("10.0.0.1:1")), pbEndpoint(netip.MustParseAddrPort("10.0.0.2:2"))})
		s.SetDestinationIndex([]uint32{1, 0})
		s.SetFirstTag(9)
		s.SetWantOutcomes(true)
		s.SetWait(true)
		s.SetTimeoutNs(11)
		return s
	}
	var want inBatch
	want.fromProto(usual())
	for what, change := range map[string]func(s *rdsdv1.SendBatch){
		"the usual layout":      func(*rdsdv1.SendBatch) {},
		"a number of later":     func(s *rdsdv1.SendBatch) { s.ProtoReflect().SetUnknown([]byte{15 << 3, 1}) },
		"bytes of later":        func(s *rdsdv1.SendBatch) { s.ProtoReflect().SetUnknown([]byte{15<<3 | 2, 1, 9}) },
		"a destination of more": func(s *rdsdv1.SendBatch) { s.GetDestination()[1].ProtoReflect().SetUnknown([]byte{15 << 3, 1}) },
	} {
		s := usual()
		change(s)
		m := &rdsdv1.ClientMessage{}
		m.SetSend(s)
		var in inMsg
		decode(t, &in, m)
		got := &in.batch
		if !in.isBatch || got.id != want.id || !bytes.Equal(got.payload, want.payload) || !cmp.Equal(got.lengths, want.lengths) || !cmp.Equal(got.index, want.index) ||
			got.firstTag != want.firstTag || !got.want || !got.wait || got.timeout != want.timeout || len(got.dests) != 2 || got.dests[0] != want.dests[0] || got.dests[1] != want.dests[1] {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
		if short := in.buf != nil; short != (what == "the usual layout") {
			t.Errorf("%s: taken the short way %v", what, short)
		}
		in.release()
	}
}
