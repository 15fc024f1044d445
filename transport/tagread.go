package transport

import (
	"fmt"

	"github.com/rdsd/rdsd/internal/buf"
)

// LargeLen is the size in bytes from which a tagged frame's payload is worth a
// system call of its own that reads it to where it belongs.
const LargeLen = 16 << 10

const (
	aheadLen = 4 << 10
	largeRun = 16 // small frames between two large ones: the end of a request, and other requests
)

// TagReader is the receiving half of a one-sided link over a byte stream: it
// cuts the stream into tagged frames, has Regions check each write before a
// byte of it is placed, places it, and calls the handler.
//
// The caller reads the stream into Want, or, with the bytes behind it, into memory of its
// own (at most Ahead bytes of that), and reports this by Filled and Feed; after each turn
// it calls EndTurn, and Close at the end. An error of any of these calls ends the link. No
// reference is kept to memory given to Feed.
type TagReader struct {
	domain *Regions
	h      OneSidedHandler
	count  *SentCount
	seq    uint32 // of the next frame
	most   uint32 // bytes of a send

	hdr    [TagLen]byte
	nhdr   int
	tag    Tag      // the frame that is partly there
	dst    []byte   // where its bytes belong that have not come; nil: no frame is begun
	region *region  // held by the write that is partly there
	msg    *buf.Buf // the send that is partly there

	begun bool // Handler.Begin was called
	large int  // above 0: of the last largeRun frames one was large
}

// NewTagReader makes the reader of a link in domain, that posts what count counts. seq is
// the number of the first frame.
func NewTagReader(domain *Regions, seq uint32, count *SentCount) TagReader {
	return TagReader{domain: domain, seq: seq, count: count, most: MaxSend}
}

// Expect bounds the sends that are taken (OneSided.Start). Memory for one is taken when its
// header has come, on as many links as a peer may make.
func (r *TagReader) Expect(recvBytes int) { r.most = uint32(min(max(recvBytes, 0), MaxSend)) }

// Start sets the handler to call.
func (r *TagReader) Start(h OneSidedHandler) { r.h = h }

// Want returns where the stream's next bytes belong while a payload is partly
// there, nil otherwise.
func (r *TagReader) Want() ([]byte, error) {
	if r.region != nil && r.region.dead.Load() {
		return nil, r.revoked()
	}
	return r.dst, nil
}

func (r *TagReader) revoked() error { return r.tag.denied("the key was revoked while it was writing") }

// Deferred reports whether nothing is to be read for a moment; see Regions.DeferReads.
func (r *TagReader) Deferred() bool { return r.domain.deferReads != nil && r.domain.deferReads() }

// Ahead is how many of room bytes to read behind Want, or without it: few where
// a large payload follows that belongs elsewhere.
func (r *TagReader) Ahead(room int) int {
	if r.large > 0 {
		return min(room, aheadLen)
	}
	return room
}

// Filled tells that n bytes were read into Want.
func (r *TagReader) Filled(n int) error {
	if n == 0 {
		return nil
	}
	if r.dst = r.dst[n:]; len(r.dst) > 0 {
		return nil
	}
	r.dst = nil
	if r.region != nil {
		// Asked before the end is noted: afterwards the region may be another key's.
		dead := r.region.dead.Load()
		r.region.wrote(&r.tag)
		r.region.end()
		r.region = nil
		if dead {
			return r.revoked()
		}
		return r.placed()
	}
	m := r.msg
	r.msg = nil
	err := r.sent(m.B)
	m.Release()
	return err
}

// Feed takes stream bytes.
func (r *TagReader) Feed(p []byte) error {
	for len(p) > 0 {
		if r.dst != nil {
			// A key that was revoked meanwhile ends the link at this byte, before it is placed.
			if _, err := r.Want(); err != nil {
				return err
			}
			n := copy(r.dst, p)
			p = p[n:]
			if err := r.Filled(n); err != nil {
				return err
			}
			continue
		}
		// A header in one piece is parsed where it lies.
		raw := p
		if r.nhdr > 0 || len(p) < TagLen {
			n := copy(r.hdr[r.nhdr:], p)
			p = p[n:]
			if r.nhdr += n; r.nhdr < TagLen {
				return nil
			}
			raw, r.nhdr = r.hdr[:], 0
		} else {
			p = p[TagLen:]
		}
		if err := r.tag.Parse(raw, r.seq); err != nil {
			return err
		}
		r.seq++
		// Large frames come in runs: as long as one lasts, less is read ahead, so that more goes
		// straight to its place (Ahead).
		if r.tag.Len >= LargeLen {
			r.large = largeRun
		} else if r.large > 0 {
			r.large--
		}
		n, err := r.begin(p)
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// begin begins the frame r.tag, with p as its payload or the first part of it, and finishes
// it if it can. It returns how much of p it used.
func (r *TagReader) begin(p []byte) (n int, err error) {
	t := &r.tag
	switch t.Kind {
	case OpWrite, OpWriteImm:
		if t.Len == 0 {
			// No byte is placed, so that no key is needed (docs/protocol.md, "Memory").
			return 0, r.placed()
		}
		// Key and range are checked first. Until its end the region counts a write under way:
		// revoking it meanwhile marks it dead, and tells the owner that the memory is still
		// being written.
		g, dst, err := r.domain.begin(t)
		if err != nil {
			return 0, err
		}
		if f := r.domain.guard; f != nil {
			if err := f(dst); err != nil {
				g.end()
				return 0, err
			}
		}
		n = copy(dst, p)
		r.region, r.dst = g, dst
		return n, r.Filled(n)
	case OpSend, OpSendImm, OpSendInval:
		if t.Len > r.most {
			return 0, &TagError{fmt.Sprintf("it announces a send of %d bytes; at most %d are taken on this link", t.Len, r.most)}
		}
		// The whole payload is in the staging buffer, and is handed out there.
		if int(t.Len) <= len(p) {
			return int(t.Len), r.sent(p[:t.Len:t.Len])
		}
		r.msg = buf.Get(int(t.Len))
		r.dst = r.msg.B
		return 0, nil
	}
	return 0, &TagError{"a handshake after the handshake"}
}

// placed tells the handler that all bytes of the write are in their place.
func (r *TagReader) placed() error {
	if r.tag.Kind == OpWrite {
		return nil
	}
	r.open()
	return r.h.Written(Placed{Known: true, Key: r.tag.Key, Addr: r.tag.Addr, N: int(r.tag.Len), Imm: r.tag.Imm})
}

// sent hands the handler a send all of whose bytes have come.
func (r *TagReader) sent(data []byte) error {
	t := &r.tag
	if t.Kind == OpSendInval {
		filled, err := r.domain.invalidate(t)
		if err != nil {
			return err
		}
		r.open()
		if err := r.h.Invalidated(t.Key, filled); err != nil || len(data) == 0 {
			return err
		}
	}
	r.open()
	return r.h.Received(data, t.Imm, t.Kind == OpSendImm)
}

// open goes before each event: the turn is begun, and what was sent before is told.
func (r *TagReader) open() {
	if !r.begun {
		r.begun = true
		r.h.Begin()
	}
	if n := r.count.take(); n > 0 {
		r.h.Sent(n)
	}
}

// TellSent tells what SentCount.Wrote has asked for, in a turn of its own.
func (r *TagReader) TellSent() {
	r.open()
	r.EndTurn()
}

// EndTurn calls the handler's End if Begin was called.
func (r *TagReader) EndTurn() {
	if r.begun {
		if n := r.count.owe(); n > 0 {
			r.h.Sent(n)
		}
		r.begun = false
		r.h.End()
	}
}

// Partial reports whether part of a frame is held.
func (r *TagReader) Partial() bool { return r.nhdr > 0 || r.dst != nil }

// Close releases partial payloads and regions; nothing is placed after it.
func (r *TagReader) Close() {
	if r.region != nil {
		r.region.end()
	}
	if r.msg != nil {
		r.msg.Release()
	}
	r.dst, r.region, r.msg, r.nhdr = nil, nil, nil, 0
}
