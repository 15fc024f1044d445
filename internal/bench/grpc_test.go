package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

// One bare grpc-go hop over a Unix socket: a client that streams the messages
// rdsd's own stream has, and a server that counts the datagrams in them, or
// sends each message back.

var (
	roleGRPCServer = register("gRPC server", runGRPCServer)
	roleGRPCClient = register("gRPC client", runGRPCClient)
	roleGRPCPing   = register("gRPC client that pings", runGRPCPing)
)

// grpcEcho is the Calls of a server that sends back what it is sent.
const grpcEcho = "echo"

// grpcWay measures batches of datagrams over one hop.
func grpcWay(bytes, batch int) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(d)
		defer w.close()
		dir, err := w.tempDir()
		if err != nil {
			return sample{}, err
		}
		a := args{Bytes: bytes, Batch: batch, Target: filepath.Join(dir, "s"), Collector: true}
		server, err := w.begun(roleGRPCServer, a)
		if err != nil {
			return sample{}, err
		}
		if _, err := w.role(roleGRPCClient, a); err != nil {
			return sample{}, err
		}
		return w.window(server, wordCount, d)
	}
}

// grpcTrip measures round trips of one message over one hop.
func grpcTrip(bytes int) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(d)
		defer w.close()
		dir, err := w.tempDir()
		if err != nil {
			return sample{}, err
		}
		a := args{Bytes: bytes, Batch: 1, Target: filepath.Join(dir, "s"), Collector: true, Calls: grpcEcho}
		if _, err := w.begun(roleGRPCServer, a); err != nil {
			return sample{}, err
		}
		ping, err := w.role(roleGRPCPing, a)
		if err != nil {
			return sample{}, err
		}
		return w.window(ping, wordCount, d)
	}
}

type sinkServer struct {
	rdsdv1.UnimplementedDatagramsServer
	board *board
	echo  bool
	got   atomic.Uint64
}

// Open counts the datagrams of the batches it is sent, or sends them back.
func (s *sinkServer) Open(stream grpc.BidiStreamingServer[rdsdv1.ClientMessage, rdsdv1.ServerMessage]) error {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !s.echo {
			s.board.set(wordCount, s.got.Add(uint64(len(m.GetSend().GetLength()))))
			continue
		}
		recv := &rdsdv1.RecvBatch{}
		recv.SetPayload(m.GetSend().GetPayload())
		recv.SetLength(m.GetSend().GetLength())
		recv.SetSource(m.GetSend().GetDestination())
		back := &rdsdv1.ServerMessage{}
		back.SetRecv(recv)
		if err := stream.Send(back); err != nil {
			return err
		}
	}
}

func runGRPCServer(r *role) error {
	l, err := net.Listen("unix", r.Target)
	if err != nil {
		return err
	}
	defer os.Remove(r.Target)
	srv := grpc.NewServer(grpc.MaxRecvMsgSize(16 << 20))
	rdsdv1.RegisterDatagramsServer(srv, &sinkServer{board: r.board, echo: r.Calls == grpcEcho})
	r.board.set(wordReady, 1)
	return srv.Serve(l)
}

// openGRPC opens the stream of a client.
func (r *role) openGRPC() (grpc.BidiStreamingClient[rdsdv1.ClientMessage, rdsdv1.ServerMessage], error) {
	c, err := grpc.NewClient("unix://"+r.Target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	return rdsdv1.NewDatagramsClient(c).Open(context.Background())
}

// grpcBatch is the message that carries a batch.
func (r *role) grpcBatch() *rdsdv1.ClientMessage {
	lengths := make([]uint32, r.Batch)
	for i := range lengths {
		lengths[i] = uint32(r.Bytes)
	}
	send := &rdsdv1.SendBatch{}
	send.SetPayload(make([]byte, r.Batch*r.Bytes))
	send.SetLength(lengths)
	send.SetDestination([]*rdsdv1.Endpoint{benchEndpoint()})
	m := &rdsdv1.ClientMessage{}
	m.SetSend(send)
	return m
}

// benchEndpoint is an address of a message whose reader asks for none.
func benchEndpoint() *rdsdv1.Endpoint {
	e := &rdsdv1.Endpoint{}
	e.SetAddress([]byte{127, 0, 0, 1})
	e.SetPort(4000)
	return e
}

func runGRPCClient(r *role) error {
	stream, err := r.openGRPC()
	if err != nil {
		return err
	}
	m := r.grpcBatch()
	for id := uint64(1); ; id++ {
		m.GetSend().SetId(id)
		if err := stream.Send(m); err != nil {
			return err
		}
	}
}

func runGRPCPing(r *role) error {
	stream, err := r.openGRPC()
	if err != nil {
		return err
	}
	m := r.grpcBatch()
	for id := uint64(1); ; id++ {
		begun := time.Now()
		m.GetSend().SetId(id)
		if err := stream.Send(m); err != nil {
			return err
		}
		back, err := stream.Recv()
		if err != nil {
			return err
		}
		if n := len(back.GetRecv().GetPayload()); n != r.Bytes {
			return fmt.Errorf("%d bytes came back of %d", n, r.Bytes)
		}
		r.board.record(time.Since(begun))
		r.board.set(wordCount, id)
	}
}
