package service

import (
	"encoding/binary"
	"log/slog"
	"net"
	"testing"

	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/config"
)

// scripted is a connection whose client sends what is in in.
type scripted struct {
	net.Conn
	in []byte
}

func (s *scripted) Read(p []byte) (int, error) {
	n := copy(p, s.in)
	s.in = s.in[n:]
	return n, nil
}

func (s *scripted) Write(p []byte) (int, error) { return len(p), nil }
func (s *scripted) Close() error                { return nil }

func h2frame(kind byte, stream uint32, payload []byte) []byte {
	b := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, 0}
	return append(binary.BigEndian.AppendUint32(b, stream), payload...)
}

// TestCallsReadAreNotOwed: a client whose messages are read owes no more after the
// thousandth than after the first ones, whatever their size, also when the
// server gives window again for several at once.
func TestCallsReadAreNotOwed(t *testing.T) {
	for _, size := range []int{1, 100, 1 << 10, 1<<10 + 1, 4110, 9000, 16<<10 - 5} {
		n := quota.New(1<<30, nil)
		table := &callTable{log: slog.New(slog.DiscardHandler), count: &base.Counters{}, conns: map[*callConn]struct{}{}}
		sock := &scripted{in: append(make([]byte, prefaceSize), h2frame(frameHeaders, 1, []byte("x"))...)}
		sock.in = append(sock.in, h2frame(frameData, 1, grpcMessage(20, 25))...) // a bind: the first is charged until the end
		c := table.wrap(sock, config.Identity{}, n.Account(quota.User(1)), func() {})
		buf := make([]byte, 64<<10)
		// A message of gRPC: a prefix of five bytes and so many more.
		msg := make([]byte, size+5)
		binary.BigEndian.PutUint32(msg[1:], uint32(size))
		unread := 0
		var most int64
		for i := range 4_000 {
			sock.in = append(sock.in, h2frame(frameData, 1, msg)...)
			for len(sock.in) > 0 {
				if _, err := c.Read(buf); err != nil {
					t.Fatalf("messages of %d bytes: %v", size, err)
				}
			}
			// gRPC's server gives window again for a quarter of it at a time.
			if unread += len(msg); unread >= 16<<10 {
				update := binary.BigEndian.AppendUint32(nil, uint32(unread))
				if _, err := c.Write(h2frame(frameWindowUpdate, 1, update)); err != nil {
					t.Fatal(err)
				}
				unread = 0
				if i > 100 && n.Used() > most {
					most = n.Used()
				}
			}
		}
		t.Logf("messages of %d bytes: at most %d charged", size, most)
		if most > 512<<10 {
			t.Errorf("messages of %d bytes: %d bytes are charged when all were read", size, most)
		}
		c.Close()
		if n.Used() != 0 {
			t.Errorf("messages of %d bytes: %d bytes are charged when the connection is closed", size, n.Used())
		}
	}
}
