package adversary

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"
)

// Stream is a connection to the gRPC socket, HTTP/2 frame by frame.
type Stream struct {
	net.Conn
	*http2.Framer

	next  uint32 // stream number
	block bytes.Buffer
	enc   *hpack.Encoder
}

// DialStream connects and says hello as HTTP/2 does, with settings.
func (s *Stage) DialStream(settings ...http2.Setting) (*Stream, error) {
	c, err := s.Unix()
	if err != nil {
		return nil, err
	}
	h := &Stream{Conn: c, Framer: http2.NewFramer(c, c), next: 1}
	h.enc = hpack.NewEncoder(&h.block)
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		return nil, err
	}
	return h, h.WriteSettings(settings...)
}

// Drain reads and forgets what the daemon says, until the connection ends; it
// acknowledges settings and pings when polite.
func (h *Stream) Drain(polite bool) {
	for {
		f, err := h.ReadFrame()
		if err != nil {
			return
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if polite && !f.IsAck() {
				h.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if polite && !f.IsAck() {
				h.WritePing(true, f.Data)
			}
		}
	}
}

// headers are those of a call, and more.
func (h *Stream) headers(path string, more ...hpack.HeaderField) []byte {
	h.block.Reset()
	for _, f := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: path},
		{Name: ":authority", Value: "localhost"}, {Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	}, more...) {
		h.enc.WriteField(f)
	}
	return h.block.Bytes()
}

// Call opens a stream for a method and returns its number.
func (h *Stream) Call(path string, more ...hpack.HeaderField) (uint32, error) {
	id := h.next
	h.next += 2
	return id, h.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: h.headers(path, more...), EndHeaders: true})
}

// Message is m as gRPC frames it.
func Message(m proto.Message) []byte {
	body, _ := proto.Marshal(m)
	b := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body)))
	return append(b, body...)
}

// Method names of the daemon's services.
const (
	methodOpen    = "/rdsd.v1.Datagrams/Open"
	methodQueue   = "/rdsd.v1.Admin/ListQueue"
	methodWatch   = "/rdsd.v1.Admin/WatchCongestion"
	methodVolumes = "/rdsd.v1.VolumeService/Watch"
)
