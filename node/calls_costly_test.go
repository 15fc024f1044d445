package node

import (
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/toll/tolltest"
	"github.com/rdsd/rdsd/node/client/clienttest"
)

// TestCostlyConnections: the same for a connection of gRPC and a socket without rings:
// what is watched too often is ended, and noted.
func TestCostlyConnections(t *testing.T) {
	n, cfg := startOne(t)
	const settings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	// until has say called until n says that a client was ended, with the descriptor watched.
	until := func(t *testing.T, c syscall.Conn, say func() error) {
		before := n.deps.Count.ClientsCostly.Load()
		raw, err := c.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		raw.Control(func(fd uintptr) { tolltest.Watch(t, int(fd)) })
		for err == nil && n.deps.Count.ClientsCostly.Load() == before {
			err = say()
			time.Sleep(5 * time.Millisecond)
		}
		await.Until(t, 5*time.Second, "it is noted", func() bool { return n.deps.Count.ClientsCostly.Load() == before+1 })
	}
	t.Run("gRPC", func(t *testing.T) {
		conn, err := net.Dial("unix", cfg.API.Socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(30 * time.Second))
		if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+settings); err != nil {
			t.Fatal(err)
		}
		go io.Copy(io.Discard, conn) // ends with the connection
		until(t, conn.(syscall.Conn), func() error {
			_, err := io.WriteString(conn, settings)
			return err
		})
	})
	t.Run("packets", func(t *testing.T) {
		p := clienttest.DialPackets(t, cfg)
		if m := p.Bind(bindTo(cfg.RDS.Addresses[0], 0)); !m.HasBound() {
			t.Fatal(m)
		}
		m := &rdsdv1.ClientMessage{}
		m.SetPeek(&rdsdv1.Peek{})
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		until(t, p.C, func() error {
			if err := p.C.WriteMessage(b); err != nil {
				return err
			}
			_, _, err := p.C.ReadMessage()
			return err
		})
	})
}
