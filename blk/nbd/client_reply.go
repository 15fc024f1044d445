package nbd

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"syscall"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
)

// maxChunk is the longest chunk of a reply that does not go into the caller's
// memory: an error's text, extents.
const maxChunk = 1 << 20

// Structured replies a server may send that ours does not.
const (
	replyNone        = 0
	replyOffsetHole  = 2
	replyErrorOffset = 1<<15 + 2
)

// read takes replies until the connection ends, then ends every call.
func (c *Client) read() {
	defer close(c.gone)
	r := bufio.NewReaderSize(c.nc, 64<<10)
	for {
		if err := c.reply(r); err != nil {
			c.fail(ended(err))
			break
		}
	}
	// A call's memory is not written any more: the reader is this goroutine.
	c.nc.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	for cookie, k := range c.calls {
		delete(c.calls, cookie)
		k.err = c.err
		close(k.done)
	}
}

// reply reads one reply, or one chunk of one.
func (c *Client) reply(r *bufio.Reader) error {
	be := binary.BigEndian
	var head [structuredSize]byte
	if _, err := io.ReadFull(r, head[:simpleSize]); err != nil {
		return err
	}
	switch m := be.Uint32(head[:]); m {
	case magicSimple:
		cookie := be.Uint64(head[8:])
		// The cookie is the server's word: one that is not under way ends the connection, for
		// the stream's place is lost.
		k, err := c.find(cookie)
		if err != nil {
			return err
		}
		if e := be.Uint32(head[4:]); e != 0 {
			k.fail(e, "")
		} else if k.cmd == cmdRead {
			if _, err := io.ReadFull(r, k.buf); err != nil {
				return err
			}
			// A simple reply to a read is followed by all of its bytes, and by none if it
			// failed.
			k.placed = uint64(k.n)
		}
		return c.finish(cookie, k)
	case magicStructured:
		if _, err := io.ReadFull(r, head[simpleSize:]); err != nil {
			return err
		}
		flags, kind := be.Uint16(head[4:]), be.Uint16(head[6:])
		cookie, n := be.Uint64(head[8:]), be.Uint32(head[16:])
		k, err := c.find(cookie)
		if err != nil {
			return err
		}
		if err := k.chunk(r, kind, n); err != nil {
			return err
		}
		// Chunks of one reply may come in any order; only the flag says which is the last.
		if flags&replyFlagDone != 0 {
			return c.finish(cookie, k)
		}
		return nil
	default:
		return rdserr.With(rdserr.ErrProtocol, "a reply begins with %#x", m)
	}
}

func (c *Client) find(cookie uint64) (*call, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.calls[cookie]
	if k == nil {
		return nil, rdserr.With(rdserr.ErrProtocol, "a reply to a request that was not made (cookie %#x)", cookie)
	}
	return k, nil
}

// finish gives a call that was answered whole back to its caller.
func (c *Client) finish(cookie uint64, k *call) error {
	switch {
	case k.err != nil:
	case k.cmd == cmdRead && k.placed != uint64(k.n):
		return rdserr.With(rdserr.ErrProtocol, "a read of %d bytes was answered with %d", k.n, k.placed)
	case k.cmd == cmdBlockStatus && len(k.extents) == 0:
		return rdserr.With(rdserr.ErrProtocol, "a block status was answered without an extent")
	}
	c.mu.Lock()
	delete(c.calls, cookie)
	c.mu.Unlock()
	close(k.done)
	return nil
}

// chunk takes one chunk of a structured reply.
func (k *call) chunk(r *bufio.Reader, kind uint16, n uint32) error {
	be := binary.BigEndian
	// Data goes straight to its place in the caller's memory, after part has checked the
	// range.
	if kind == replyOffsetData {
		var at [8]byte
		if n < 9 {
			return malformed(kind, n)
		}
		if _, err := io.ReadFull(r, at[:]); err != nil {
			return err
		}
		to, err := k.part(be.Uint64(at[:]), uint64(n)-8)
		if err != nil {
			return err
		}
		_, err = io.ReadFull(r, to)
		return err
	}
	// Every other chunk is small, and is read whole before it is looked at.
	if n > maxChunk {
		return rdserr.With(rdserr.ErrProtocol, "a chunk of kind %d with %d bytes; at most %d", kind, n, maxChunk)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return err
	}
	switch {
	case kind == replyNone && n == 0:
	case kind == replyOffsetHole && n == 12:
		to, err := k.part(be.Uint64(b), uint64(be.Uint32(b[8:])))
		if err != nil {
			return err
		}
		// A hole reads as zeroes, and the caller's memory still has its old content.
		clear(to)
	case kind == replyBlockStatus && n >= 12 && n%8 == 4:
		return k.status(b)
	case (kind == replyError || kind == replyErrorOffset) && n >= 6:
		text := int(be.Uint16(b[4:]))
		if be.Uint32(b) == 0 || text > len(b)-6 {
			return malformed(kind, n)
		}
		k.fail(be.Uint32(b), string(b[6:6+text]))
	case kind&(1<<15) != 0 && n >= 4 && be.Uint32(b) != 0: // an error of a kind to come
		k.fail(be.Uint32(b), "")
	default:
		return malformed(kind, n)
	}
	return nil
}

func malformed(kind uint16, n uint32) error {
	return rdserr.With(rdserr.ErrProtocol, "a chunk of kind %d with %d bytes", kind, n)
}

// part is where n bytes at off of the export belong in the caller's memory.
func (k *call) part(off, n uint64) ([]byte, error) {
	if k.cmd != cmdRead || off < k.off || off-k.off > uint64(k.n) || n > uint64(k.n)-(off-k.off) {
		return nil, rdserr.With(rdserr.ErrProtocol, "data at %d, %d bytes, in reply to a request at %d, %d bytes", off, n, k.off, k.n)
	}
	if err := k.cover(span{off - k.off, off - k.off + n}); err != nil {
		return nil, err
	}
	k.placed += n
	return k.buf[off-k.off:][:n], nil
}

// span is a part of a read, from one byte to before another.
type span struct{ from, to uint64 }

// maxParts is how many parts of a read may be there before those between them are.
const maxParts = 1024

// cover notes that s has come. A server that sent a part twice might leave another one out,
// where the caller's memory would keep its old content.
func (k *call) cover(s span) error {
	if s.from == s.to {
		return nil
	}
	// parts are the spans that have come, in order, with gaps between them.
	i, _ := slices.BinarySearchFunc(k.parts, s.from, func(p span, at uint64) int { return cmp.Compare(p.to, at) })
	// All before i end before s.from.
	if i < len(k.parts) && k.parts[i].to == s.from { // right behind that one
		if i+1 < len(k.parts) && k.parts[i+1].from < s.to {
			return twice(k, s)
		}
		k.parts[i].to = s.to
		if i+1 < len(k.parts) && k.parts[i+1].from == s.to { // and the gap is closed
			k.parts[i].to = k.parts[i+1].to
			k.parts = slices.Delete(k.parts, i+1, i+2)
		}
		return nil
	}
	switch {
	case i < len(k.parts) && k.parts[i].from < s.to:
		return twice(k, s)
	case i < len(k.parts) && k.parts[i].from == s.to:
		k.parts[i].from = s.from
	// Without a bound a server could have one span kept for every second byte.
	case len(k.parts) >= maxParts:
		return rdserr.With(rdserr.ErrProtocol, "a read is answered in more than %d parts with gaps between them", maxParts)
	default:
		k.parts = slices.Insert(k.parts, i, s)
	}
	return nil
}

func twice(k *call, s span) error {
	return rdserr.With(rdserr.ErrProtocol, "data at %d, %d bytes, has come already in part", k.off+s.from, s.to-s.from)
}

// status takes the extents of a block status; the last one may reach beyond the requested
// range.
func (k *call) status(b []byte) error {
	be := binary.BigEndian
	if k.cmd != cmdBlockStatus || be.Uint32(b) != k.context || len(k.extents) > 0 {
		return rdserr.With(rdserr.ErrProtocol, "extents nobody asked for")
	}
	left := uint64(k.n)
	for b = b[4:]; len(b) > 0 && left > 0; b = b[8:] {
		n, state := min(uint64(be.Uint32(b)), left), be.Uint32(b[4:])
		if n == 0 {
			return rdserr.With(rdserr.ErrProtocol, "an extent of no length")
		}
		k.extents = append(k.extents, blk.Extent{Len: n, Hole: state&stateHole != 0, Zero: state&stateZero != 0})
		left -= n
	}
	return nil
}

// fail takes the error a server answered with; the first one counts.
func (k *call) fail(value uint32, text string) {
	if k.err != nil {
		return
	}
	names := map[uint16]string{cmdRead: "read", cmdWrite: "write", cmdFlush: "flush", cmdTrim: "trim", cmdWriteZeroes: "write zeroes", cmdBlockStatus: "block status"}
	k.err = &answer{fmt.Sprintf("%s at %d, %d bytes", names[k.cmd], k.off, k.n), text, syscall.Errno(value)}
}

// answer is an error of the server's.
type answer struct {
	what, text string
	errno      syscall.Errno
}

func (e *answer) Error() string {
	if e.text == "" {
		return e.what + ": " + e.errno.Error()
	}
	return e.what + ": " + e.text
}

func (e *answer) Unwrap() error { return e.errno }
