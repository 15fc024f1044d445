package memtest

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"
	"time"
)

// h2 is a gRPC client that does as it likes: it writes frames and reads none but
// to know of its end.
type h2 struct {
	net.Conn
	next uint32
	gone chan struct{}
}

func dialH2(t *testing.T, socket string) *h2 {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	h := &h2{Conn: c, next: 1, gone: make(chan struct{})}
	go func() { // ends with the connection
		defer close(h.gone)
		b := make([]byte, 64<<10)
		for {
			if _, err := c.Read(b); err != nil {
				return
			}
		}
	}()
	_, _ = c.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
	h.frame(4, 0, 0, nil)
	return h
}

func (h *h2) frame(kind, flags byte, stream uint32, payload []byte) bool {
	b := make([]byte, 9, 9+len(payload))
	b[0], b[1], b[2], b[3], b[4] = byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload)), kind, flags
	binary.BigEndian.PutUint32(b[5:], stream)
	return h.write(append(b, payload...))
}

// write gives up when the daemon reads no more.
func (h *h2) write(b []byte) bool {
	_ = h.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
	_, err := h.Write(b)
	return err == nil
}

// open begins a call of Datagrams.Open.
func (h *h2) open() uint32 { return h.call("/rdsd.v1.Datagrams/Open", 0) }

// call begins a call with so many fields beside, of a byte each: one that is there from the first of them on.
func (h *h2) call(method string, fields int) uint32 {
	var b []byte
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", "x"},
		{"content-type", "application/grpc"}, {"te", "trailers"}} {
		b = append(b, 0, byte(len(f[0])))
		b = append(b, f[0]...)
		b = append(b, byte(len(f[1])))
		b = append(b, f[1]...)
	}
	if h.next == 1 && fields > 0 {
		b = append(b, 0x40, 1, 'f', 0) // to be number 62
		fields--
	}
	b = append(b, bytes.Repeat([]byte{0x80 | 62}, fields)...)
	id := h.next
	h.next += 2
	h.frame(1, 4, id, b)
	return id
}

// says sends a message; last: the client has no more to say.
func (h *h2) says(stream uint32, m []byte, last bool) bool {
	m = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(m))), m...)
	for len(m) > 0 {
		n := min(len(m), 16<<10)
		var flags byte
		if last && n == len(m) {
			flags = 1
		}
		if !h.frame(0, flags, stream, m[:n]) {
			return false
		}
		m = m[n:]
	}
	return true
}

// begin announces a message of n bytes.
func (h *h2) begin(stream uint32, n int) bool {
	b := make([]byte, 5)
	binary.BigEndian.PutUint32(b[1:], uint32(n))
	return h.frame(0, 0, stream, b)
}

// data sends n bytes of one in frames of size bytes.
func (h *h2) data(stream uint32, n, size int) bool {
	var b []byte
	for n > 0 {
		k := min(size, n)
		b = append(b, byte(k>>16), byte(k>>8), byte(k), 0, 0)
		b = binary.BigEndian.AppendUint32(b, stream)
		b = append(b, make([]byte, k)...)
		n -= k
		if len(b) > 256<<10 || n == 0 {
			if !h.write(b) {
				return false
			}
			b = b[:0]
		}
	}
	return true
}
