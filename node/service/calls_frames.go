package service

import (
	"cmp"
	"encoding/binary"
)

// frames follows one direction of an HTTP/2 connection: it finds where frames
// begin and end in the bytes of reads and writes, whatever their borders, and
// copies nothing. What is no HTTP/2 is the server's to refuse.
type frames struct {
	skip   int // bytes of the client's preface left
	head   [frameHead]byte
	nhead  int
	left   int // bytes of the payload left
	kind   uint8
	flags  uint8
	stream uint32
	small  [4]byte // beginning of the payload of a frame with a number in it
	nsmall int
}

const (
	frameHead   = 9
	prefaceSize = len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")

	frameData         = 0
	frameHeaders      = 1
	frameReset        = 3
	frameSettings     = 4
	frameWindowUpdate = 8
	frameContinuation = 9

	flagEndStream = 0x1
	flagPadded    = 0x8
)

// feed cuts p. begin is called with each header, body with each piece of the
// payload of a DATA frame, end with each whole frame.
func (f *frames) feed(p []byte, begin func(size int), body func(p []byte), end func()) {
	if n := min(f.skip, len(p)); n > 0 {
		f.skip -= n
		p = p[n:]
	}
	for len(p) > 0 {
		if f.nhead < frameHead {
			n := copy(f.head[f.nhead:], p)
			f.nhead += n
			p = p[n:]
			if f.nhead < frameHead {
				return
			}
			h := &f.head
			f.left = int(h[0])<<16 | int(h[1])<<8 | int(h[2])
			f.kind, f.flags = h[3], h[4]
			f.stream = binary.BigEndian.Uint32(h[5:]) &^ (1 << 31)
			f.nsmall = 0
			begin(f.left)
		}
		n := min(f.left, len(p))
		switch f.kind {
		case frameData:
			if n > 0 {
				body(p[:n])
			}
		case frameWindowUpdate:
			f.nsmall += copy(f.small[f.nsmall:], p[:n])
		}
		p = p[n:]
		if f.left -= n; f.left == 0 {
			f.nhead = 0
			end()
		}
	}
}

// number is what a WINDOW_UPDATE says, 0 when it is too short.
func (f *frames) number() int64 {
	if f.nsmall < 4 {
		return 0
	}
	return int64(binary.BigEndian.Uint32(f.small[:]) &^ (1 << 31))
}

// messages follows the gRPC messages in the DATA frames of one stream: five
// bytes that begin with a flag and tell a length, then so many bytes.
type messages struct {
	head  [5]byte
	nhead int
	left  int64 // bytes of the message left
	size  int64 // of what has come of it, its head included; 0 between messages
	first int64 // bytes of the first message, its head included, once all have come
}

func (m *messages) feed(p []byte) {
	for len(p) > 0 {
		if m.nhead < len(m.head) {
			n := copy(m.head[m.nhead:], p)
			m.nhead += n
			m.size += int64(n)
			p = p[n:]
			if m.nhead < len(m.head) {
				return
			}
			m.left = int64(binary.BigEndian.Uint32(m.head[1:]))
		}
		n := min(m.left, int64(len(p)))
		m.left -= n
		m.size += n
		p = p[n:]
		if m.left == 0 {
			*m = messages{first: cmp.Or(m.first, m.size)}
		}
	}
}
