package rdsd

import (
	"encoding/binary"
	"net"
	"sync"
	"testing"

	"golang.org/x/net/http2"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

// frameCounter counts the frames of HTTP/2 that a client sends, by their types.
type frameCounter struct {
	net.Listener
	mu   sync.Mutex
	seen map[http2.FrameType]int // guarded by mu
}

func (l *frameCounter) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &countedConn{Conn: c, counter: l, skip: len(http2.ClientPreface)}, err
}

func (l *frameCounter) count(kind http2.FrameType) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen[kind]
}

// countedConn is a connection of the client, at the server.
type countedConn struct {
	net.Conn
	counter *frameCounter
	skip    int // bytes before the next header
	head    []byte
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	for b := p[:n]; len(b) > 0; {
		if k := min(c.skip, len(b)); k > 0 {
			c.skip -= k
			b = b[k:]
			continue
		}
		c.head = append(c.head, b[0])
		b = b[1:]
		if len(c.head) < 9 {
			continue
		}
		// A ping's answer is the server's affair.
		if kind := http2.FrameType(c.head[3]); kind != http2.FramePing || !http2.Flags(c.head[4]).Has(http2.FlagPingAck) {
			c.counter.mu.Lock()
			c.counter.seen[kind]++
			c.counter.mu.Unlock()
		}
		c.skip = int(binary.BigEndian.Uint32(c.head) >> 8)
		c.head = c.head[:0]
	}
	return n, err
}

// TestNoPingForEachMessage: what comes from the daemon is no reason to send it anything over the
// connection. With windows of its own choice grpc-go sends a ping, and a window, for nearly every message.
func TestNoPingForEachMessage(t *testing.T) {
	frames := &frameCounter{seen: map[http2.FrameType]int{}}
	d := newFakeDaemonBehind(t, func(l net.Listener) net.Listener { frames.Listener = l; return frames })
	_, _, s, st := bindTo(t, d, func(*rdsdv1.Bound) {})
	before := frames.count(http2.FrameWindowUpdate)
	for range 50 {
		st.push(Datagram{Addr: peerAddr, Payload: []byte("x")})
		if d, err := s.Recv(testContext(t)); err != nil || string(d.Payload) != "x" {
			t.Fatal(d, err)
		}
	}
	if frames.count(http2.FrameHeaders) == 0 {
		t.Fatal("not even the frame that opens the stream was counted")
	}
	if n := frames.count(http2.FramePing); n > 0 {
		t.Errorf("%d pings for 50 messages", n)
	}
	if n := frames.count(http2.FrameWindowUpdate) - before; n > 0 {
		t.Errorf("%d windows for 50 messages", n)
	}
}
