package rdsd

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/api/rdsd/v1/fastwire"
)

// These compare the SDK's send and receive paths with a bare grpc-go stream of
// the same messages over the same kind of socket:
//
//	go test -run '^$' -bench . -benchmem ./sdk/go

const benchBatch, benchBytes = 64, 64

// rawCodec passes messages through, so that the server costs little.
type rawCodec struct{}

type rawMsg struct{ data []byte }

func (rawCodec) Name() string { return "proto" }
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.(*rawMsg).data)}, nil
}
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	m := v.(*rawMsg)
	m.data = append(m.data[:0], buf.ReadOnlyData()...)
	return nil
}

// benchServer answers Bind, then hands the stream to serve.
func benchServer(b *testing.B, serve func(grpc.ServerStream) error) *Client {
	b.Helper()
	path := filepath.Join(b.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}), grpc.UnknownServiceHandler(func(_ any, st grpc.ServerStream) error {
		return serve(st)
	}))
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(l) })
	c, err := Dial(path)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		c.Close()
		server.Stop()
		wg.Wait()
	})
	return c
}

func answerBind(st grpc.ServerStream) error {
	var in rawMsg
	if err := st.RecvMsg(&in); err != nil {
		return err
	}
	m := &rdsdv1.ServerMessage{}
	bd := &rdsdv1.Bound{}
	bd.SetLocal(endpointToProto(localAddr))
	bd.SetMaxDatagramBytes(1 << 20)
	bd.SetSendWindowBytes(4 << 20)
	bd.SetSendWindowBatches(256)
	m.SetBound(bd)
	data, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	return st.SendMsg(&rawMsg{data})
}

func benchDatagrams() []Datagram {
	ds := make([]Datagram, benchBatch)
	for i := range ds {
		ds[i] = Datagram{Addr: peerAddr, Payload: make([]byte, benchBytes)}
	}
	return ds
}

func reportRate(b *testing.B) {
	b.ReportMetric(float64(b.N)*benchBatch/b.Elapsed().Seconds(), "datagrams/s")
}

// BenchmarkBareStream is the yardstick: one hop, nothing comes back.
func BenchmarkBareStream(b *testing.B) {
	got := make(chan int, 1)
	c := benchServer(b, func(st grpc.ServerStream) error {
		var in rawMsg
		n := 0
		for {
			if err := st.RecvMsg(&in); err != nil {
				got <- n
				if errors.Is(err, io.EOF) {
					return nil
				}
				return err
			}
			n++
		}
	})
	st, err := rdsdv1.NewDatagramsClient(c.conn).Open(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	sb := newBatch()
	for _, d := range benchDatagrams() {
		sb.add(d.Addr, d.Payload, 0)
	}
	data := sb.marshal()
	m := &rdsdv1.ClientMessage{}
	if err := proto.Unmarshal(data.Materialize(), m); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if err := st.Send(m); err != nil {
			b.Fatal(err)
		}
	}
	st.CloseSend()
	if n := <-got; n != b.N {
		b.Fatalf("%d of %d arrived", n, b.N)
	}
	reportRate(b)
}

func serveResults(st grpc.ServerStream) error {
	if err := answerBind(st); err != nil {
		return err
	}
	var in rawMsg
	for {
		if err := st.RecvMsg(&in); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		// Only the id is wanted: it comes first in what batch.marshal writes.
		id := in.data[7:]
		n := 0
		for id[n]&0x80 != 0 {
			n++
		}
		out := append([]byte{fastwire.ServerSendResult, byte(n + 2), fastwire.ResultID}, id[:n+1]...)
		if err := st.SendMsg(&rawMsg{out}); err != nil {
			return err
		}
	}
}

func benchSocket(b *testing.B, c *Client) *Socket {
	b.Helper()
	s, err := c.Bind(context.Background(), localAddr)
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// BenchmarkSendBatch sends 64 x 64 B from several goroutines, each waiting for
// the result of its batch.
func BenchmarkSendBatch(b *testing.B) {
	s := benchSocket(b, benchServer(b, serveResults))
	b.ReportAllocs()
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		ds := benchDatagrams()
		for pb.Next() {
			if _, err := s.SendBatch(context.Background(), ds); err != nil {
				b.Error(err)
				return
			}
		}
	})
	reportRate(b)
}

// BenchmarkSend is one datagram at a time from many goroutines.
func BenchmarkSend(b *testing.B) {
	s := benchSocket(b, benchServer(b, serveResults))
	b.ReportAllocs()
	b.SetParallelism(64)
	b.RunParallel(func(pb *testing.PB) {
		p := make([]byte, benchBytes)
		for pb.Next() {
			if err := s.Send(context.Background(), peerAddr, p); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkRecvBatch receives what the daemon pushes, as credit allows.
func BenchmarkRecvBatch(b *testing.B) {
	c := benchServer(b, func(st grpc.ServerStream) error {
		if err := answerBind(st); err != nil {
			return err
		}
		rb := &rdsdv1.RecvBatch{}
		rb.SetPayload(make([]byte, benchBatch*benchBytes))
		lengths := make([]uint32, benchBatch)
		for i := range lengths {
			lengths[i] = benchBytes
		}
		rb.SetLength(lengths)
		rb.SetSource([]*rdsdv1.Endpoint{endpointToProto(peerAddr)})
		m := &rdsdv1.ServerMessage{}
		m.SetRecv(rb)
		data, err := proto.Marshal(m)
		if err != nil {
			return err
		}
		credit := defaultWindowDatagrams
		var in rawMsg
		for {
			for ; credit >= benchBatch; credit -= benchBatch {
				if err := st.SendMsg(&rawMsg{data}); err != nil {
					return err
				}
			}
			if err := st.RecvMsg(&in); err != nil {
				return nil
			}
			var cm rdsdv1.ClientMessage
			if err := proto.Unmarshal(in.data, &cm); err != nil {
				return err
			}
			credit += int(cm.GetCredit().GetDatagrams())
		}
	})
	s := benchSocket(b, c)
	into := make([]Datagram, 256)
	b.ReportAllocs()
	b.ResetTimer()
	for got := 0; got < b.N*benchBatch; {
		n, err := s.RecvBatch(context.Background(), into)
		if err != nil {
			b.Fatal(err)
		}
		got += n
	}
	reportRate(b)
}
