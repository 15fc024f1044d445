package rdsd

import (
	"bytes"
	"net/netip"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/api/rdsd/v1/fastwire"
)

func drawEndpoint(t *rapid.T) netip.AddrPort {
	raw := rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "v4")
	if rapid.Bool().Draw(t, "v6") {
		raw = rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "v6 bytes")
		raw[0] = 0x20 // not IPv4-mapped
	}
	addr, _ := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(addr, rapid.Uint16().Draw(t, "port"))
}

// What marshal writes is what package proto reads.
func TestMarshalSendBatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dests := rapid.SliceOfN(rapid.Custom(drawEndpoint), 1, 5).Draw(t, "destinations")
		payloads := rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 300), 1, 40).Draw(t, "payloads")
		b := newBatch()
		b.id = rapid.Uint64().Draw(t, "id")
		b.firstTag = rapid.Uint64().Draw(t, "tag")
		b.wantOutcomes = rapid.Bool().Draw(t, "outcomes")
		b.posted = rapid.Bool().Draw(t, "posted")
		b.resultLater = b.posted && rapid.Bool().Draw(t, "result later")
		b.wait = rapid.Bool().Draw(t, "wait")
		to := make([]netip.AddrPort, len(payloads))
		for i, p := range payloads {
			to[i] = rapid.SampledFrom(dests).Draw(t, "to")
			b.add(to[i], p, 0)
		}
		data, err := streamCodec{}.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		var m rdsdv1.ClientMessage
		if err := proto.Unmarshal(data.Materialize(), &m); err != nil {
			t.Fatal(err)
		}
		data.Free()
		got := m.GetSend()
		if got.GetId() != b.id || got.GetFirstTag() != b.firstTag || got.GetWantOutcomes() != b.wantOutcomes || got.GetWait() != (b.wait || b.posted) ||
			got.GetResultMayWait() != b.resultLater {
			t.Fatalf("%v", got)
		}
		if !bytes.Equal(got.GetPayload(), bytes.Join(payloads, nil)) || len(got.GetLength()) != len(payloads) {
			t.Fatalf("payload or lengths differ: %v", got.GetLength())
		}
		for i, p := range payloads {
			k := 0
			if len(got.GetDestinationIndex()) > 0 {
				k = int(got.GetDestinationIndex()[i])
			}
			if got.GetLength()[i] != uint32(len(p)) || endpointFromProto(got.GetDestination()[k]) != to[i] {
				t.Fatalf("datagram %d: %d bytes to %v", i, got.GetLength()[i], got.GetDestination()[k])
			}
		}
		b.recycle()
	})
}

func readAll(b *inBatch) []Datagram {
	var ds []Datagram
	for b.left > 0 {
		ds = append(ds, b.next())
	}
	return ds
}

// What package proto writes is what unmarshal reads.
func TestUnmarshalRecvBatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sources := rapid.SliceOfN(rapid.Custom(drawEndpoint), 1, 4).Draw(t, "sources")
		payloads := rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 300), 1, 40).Draw(t, "payloads")
		m := &rdsdv1.RecvBatch{}
		m.SetPayload(bytes.Join(payloads, nil))
		want := make([]Datagram, len(payloads))
		var lengths, index []uint32
		indexed := rapid.Bool().Draw(t, "indexed")
		for i, p := range payloads {
			k := 0
			if indexed {
				k = rapid.IntRange(0, len(sources)-1).Draw(t, "from")
				index = append(index, uint32(k))
			}
			lengths = append(lengths, uint32(len(p)))
			want[i] = Datagram{Addr: sources[k], Payload: p}
		}
		var eps []*rdsdv1.Endpoint
		for _, a := range sources {
			eps = append(eps, endpointToProto(a))
		}
		m.SetLength(lengths)
		m.SetSource(eps)
		m.SetSourceIndex(index)
		sm := &rdsdv1.ServerMessage{}
		sm.SetRecv(m)
		data, err := proto.Marshal(sm)
		if err != nil {
			t.Fatal(err)
		}
		var in inbound
		if err := (streamCodec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, &in); err != nil || in.recv == nil {
			t.Fatalf("%v %+v", err, in)
		}
		got := readAll(in.recv)
		if len(got) != len(want) {
			t.Fatalf("%d datagrams, want %d", len(got), len(want))
		}
		for i := range got {
			if got[i].Addr != want[i].Addr || !bytes.Equal(got[i].Payload, want[i].Payload) {
				t.Fatalf("datagram %d: %v, want %v", i, got[i], want[i])
			}
		}
	})
}

// A legal message of another layout: unpacked lengths.
func TestUnmarshalUnpacked(t *testing.T) {
	var recv []byte
	for _, n := range []uint64{1, 2} {
		recv = protowire.AppendVarint(protowire.AppendTag(recv, 2, protowire.VarintType), n)
	}
	recv = protowire.AppendBytes(protowire.AppendTag(recv, 1, protowire.BytesType), []byte("abb"))
	ep, _ := proto.Marshal(endpointToProto(peerAddr))
	recv = protowire.AppendBytes(protowire.AppendTag(recv, 3, protowire.BytesType), ep)
	data := protowire.AppendBytes(protowire.AppendTag(nil, 3, protowire.BytesType), recv)
	var in inbound
	if err := in.unmarshal(data); err != nil || in.recv == nil {
		t.Fatal(err)
	}
	if got := readAll(in.recv); len(got) != 2 || string(got[1].Payload) != "bb" || got[1].Addr != peerAddr {
		t.Errorf("%v", got)
	}
}

// Hostile or broken bytes give an error or a batch that can be read to its end.
func FuzzUnmarshal(f *testing.F) {
	b := &rdsdv1.RecvBatch{}
	b.SetPayload([]byte("abb"))
	b.SetLength([]uint32{1, 2})
	b.SetSource([]*rdsdv1.Endpoint{endpointToProto(peerAddr), endpointToProto(otherAddr)})
	b.SetSourceIndex([]uint32{1, 0})
	m := &rdsdv1.ServerMessage{}
	m.SetRecv(b)
	good, _ := proto.Marshal(m)
	f.Add(good)
	r := &rdsdv1.SendResult{}
	r.SetId(7)
	r.SetAccepted(3)
	m.SetSendResult(r)
	result, _ := proto.Marshal(m)
	f.Add(result)
	f.Add([]byte{fastwire.ServerRecv, 4, fastwire.RecvLength, 2, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, data []byte) {
		var in inbound
		err := in.unmarshal(bytes.Clone(data))
		if err != nil {
			return
		}
		if in.recv != nil {
			total := len(in.recv.payload)
			for _, d := range readAll(in.recv) {
				total -= len(d.Payload)
			}
			if total != 0 {
				t.Errorf("%d bytes of the payload are in no datagram", total)
			}
		}
		if proto.Unmarshal(data, &rdsdv1.ServerMessage{}) != nil {
			t.Errorf("accepted what package proto refuses: %x", data)
		}
	})
}

func TestPlainResult(t *testing.T) {
	r := &rdsdv1.SendResult{}
	r.SetId(1 << 40)
	r.SetAccepted(64)
	m := &rdsdv1.ServerMessage{}
	m.SetSendResult(r)
	data, _ := proto.Marshal(m)
	var in inbound
	if err := in.unmarshal(data); err != nil || !in.isResult || in.resultID != 1<<40 {
		t.Errorf("%+v %v", in, err)
	}
	r.SetErrors([]*rdsdv1.SendError{{}})
	m.SetSendResult(r)
	data, _ = proto.Marshal(m)
	if err := in.unmarshal(data); err != nil || in.isResult || len(in.msg.GetSendResult().GetErrors()) != 1 {
		t.Errorf("%+v %v", in, err)
	}
}
