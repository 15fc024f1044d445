package bench

import (
	"context"
	"errors"
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
// rdsd's own stream has, and a server that counts the datagrams in them.

var (
	roleGRPCServer = register("gRPC server", runGRPCServer)
	roleGRPCClient = register("gRPC client", runGRPCClient)
)

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
		server, err := w.role(roleGRPCServer, a)
		if err != nil {
			return sample{}, err
		}
		if err := w.ready(server); err != nil {
			return sample{}, err
		}
		if _, err := w.role(roleGRPCClient, a); err != nil {
			return sample{}, err
		}
		return w.window(server, wordCount, d)
	}
}

type sinkServer struct {
	rdsdv1.UnimplementedDatagramsServer
	board *board
	got   atomic.Uint64
}

// Open counts the datagrams of the batches it is sent.
func (s *sinkServer) Open(stream grpc.BidiStreamingServer[rdsdv1.ClientMessage, rdsdv1.ServerMessage]) error {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		s.board.set(wordCount, s.got.Add(uint64(len(m.GetSend().GetLength()))))
	}
}

func runGRPCServer(r *role) error {
	l, err := net.Listen("unix", r.Target)
	if err != nil {
		return err
	}
	defer os.Remove(r.Target)
	srv := grpc.NewServer(grpc.MaxRecvMsgSize(16 << 20))
	rdsdv1.RegisterDatagramsServer(srv, &sinkServer{board: r.board})
	r.board.set(wordReady, 1)
	return srv.Serve(l)
}

func runGRPCClient(r *role) error {
	c, err := grpc.NewClient("unix://"+r.Target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	stream, err := rdsdv1.NewDatagramsClient(c).Open(context.Background())
	if err != nil {
		return err
	}
	lengths := make([]uint32, r.Batch)
	for i := range lengths {
		lengths[i] = uint32(r.Bytes)
	}
	dst := &rdsdv1.Endpoint{}
	dst.SetAddress([]byte{127, 0, 0, 1})
	dst.SetPort(4000)
	send := &rdsdv1.SendBatch{}
	send.SetPayload(make([]byte, r.Batch*r.Bytes))
	send.SetLength(lengths)
	send.SetDestination([]*rdsdv1.Endpoint{dst})
	m := &rdsdv1.ClientMessage{}
	m.SetSend(send)
	for id := uint64(1); ; id++ {
		send.SetId(id)
		if err := stream.Send(m); err != nil {
			return err
		}
	}
}
