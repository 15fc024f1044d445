package bench

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

// What the shape of a socket over gRPC costs by itself: an application, its hop of grpc-go to a
// process, TCP to another, and a hop to the application there. The two processes in the middle
// only pass on: no sockets, no results, no credit. Each message goes through the goroutines that
// grpc-go needs and no other; TCP is read and written by the Go runtime, without a reactor.

var (
	roleGRPCRelay = register("gRPC relay", runGRPCRelay)
	roleGRPCEcho  = register("gRPC client that echoes", runGRPCEcho)
)

// grpcRelayTrip measures round trips of one message over two hops with TCP between them.
func grpcRelayTrip(bytes int) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(d)
		defer w.close()
		dir, err := w.tempDir()
		if err != nil {
			return sample{}, err
		}
		port, err := freePort()
		if err != nil {
			return sample{}, err
		}
		var ends [2]args
		for i := range ends { // the first listens for the other
			ends[i] = args{Bytes: bytes, Batch: 1, Collector: true, Target: filepath.Join(dir, strconv.Itoa(i)), First: i == 0,
				Local: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
			if _, err := w.begun(roleGRPCRelay, ends[i]); err != nil {
				return sample{}, err
			}
		}
		if _, err := w.begun(roleGRPCEcho, ends[1]); err != nil {
			return sample{}, err
		}
		ping, err := w.role(roleGRPCPing, ends[0])
		if err != nil {
			return sample{}, err
		}
		return w.window(ping, wordCount, d)
	}
}

// relayServer joins the one stream of its client with a connection.
type relayServer struct {
	rdsdv1.UnimplementedDatagramsServer
	peer func() (net.Conn, error) // waits for the connection
}

// Open passes messages on, both ways, until the stream or the connection ends.
func (s *relayServer) Open(stream grpc.BidiStreamingServer[rdsdv1.ClientMessage, rdsdv1.ServerMessage]) error {
	peer, err := s.peer()
	if err != nil {
		return err
	}
	defer peer.Close()
	go func() { // ends with the connection
		in := bufio.NewReaderSize(peer, 64<<10)
		for {
			var size [4]byte
			if _, err := io.ReadFull(in, size[:]); err != nil {
				return
			}
			payload := make([]byte, binary.LittleEndian.Uint32(size[:]))
			if _, err := io.ReadFull(in, payload); err != nil {
				return
			}
			recv := &rdsdv1.RecvBatch{}
			recv.SetPayload(payload)
			recv.SetLength([]uint32{uint32(len(payload))})
			recv.SetSource([]*rdsdv1.Endpoint{benchEndpoint()})
			m := &rdsdv1.ServerMessage{}
			m.SetRecv(recv)
			if stream.Send(m) != nil {
				return
			}
		}
	}()
	var out []byte
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		p := m.GetSend().GetPayload()
		out = append(binary.LittleEndian.AppendUint32(out[:0], uint32(len(p))), p...)
		if _, err := peer.Write(out); err != nil {
			return err
		}
	}
}

func runGRPCRelay(r *role) error {
	var peer func() (net.Conn, error)
	if r.First {
		l, err := net.Listen("tcp", r.Local)
		if err != nil {
			return err
		}
		peer = l.Accept
	} else {
		c, err := net.Dial("tcp", r.Local)
		if err != nil {
			return err
		}
		peer = func() (net.Conn, error) { return c, nil }
	}
	l, err := net.Listen("unix", r.Target)
	if err != nil {
		return err
	}
	defer os.Remove(r.Target)
	srv := grpc.NewServer()
	rdsdv1.RegisterDatagramsServer(srv, &relayServer{peer: sync.OnceValues(peer)})
	r.board.set(wordReady, 1)
	return srv.Serve(l)
}

// runGRPCEcho sends back what comes.
func runGRPCEcho(r *role) error {
	stream, err := r.openGRPC()
	if err != nil {
		return err
	}
	m := r.grpcBatch()
	r.board.set(wordReady, 1)
	for id := uint64(1); ; id++ {
		in, err := stream.Recv()
		if err != nil {
			return err
		}
		if n := len(in.GetRecv().GetPayload()); n != r.Bytes {
			return fmt.Errorf("%d bytes came of %d", n, r.Bytes)
		}
		m.GetSend().SetId(id)
		m.GetSend().SetPayload(in.GetRecv().GetPayload())
		if err := stream.Send(m); err != nil {
			return err
		}
	}
}
