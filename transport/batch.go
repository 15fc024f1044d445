package transport

import "sync"

// Limits of one batch: the most that goes into one system call.
const (
	BatchBytes  = 256 << 10
	BatchPieces = 128     // pieces of memory (struct iovec)
	InlineBytes = 2 << 10 // payloads up to this are copied
	stageBytes  = 192 << 10
)

// Batch is a run of frames on its way to a link: a list of memory pieces, of
// which the headers and small payloads are copied together and large payloads
// referenced. Payload memory stays untouched until the link reports the batch
// written.
type Batch struct {
	unwritten
	stage  []byte
	from   int // start in stage of the piece being built
	frames int

	// Bytes is the size of all frames, headers included. The batch alone changes it.
	Bytes int
}

var batches = sync.Pool{New: func() any {
	return &Batch{stage: make([]byte, 0, stageBytes), unwritten: unwritten{all: make([][]byte, 0, BatchPieces+1)}}
}}

// GetBatch takes an empty batch from the pool.
func GetBatch() *Batch { return batches.Get().(*Batch) }

// Put gives the batch back; the caller must not use it any more.
func (b *Batch) Put() {
	b.Reset()
	batches.Put(b)
}

// Reset empties the batch.
func (b *Batch) Reset() {
	clear(b.all)
	b.stage, b.all, b.Pieces = b.stage[:0], b.all[:0], nil
	b.from, b.Bytes, b.frames = 0, 0, 0
}

// Room reports whether a frame with a payload of n bytes still fits. One frame
// always fits into an empty batch.
func (b *Batch) Room(n int) bool {
	if b.frames == 0 {
		return true
	}
	need := 48
	if n <= InlineBytes {
		need += n
	}
	return b.Bytes+48+n <= BatchBytes && len(b.stage)+need <= cap(b.stage) && len(b.all)+2 < BatchPieces
}

// Frame adds a frame and returns the 48 bytes where its header is to be
// written before the batch is sent. It works even without Room: the few frames
// of the protocol's own that end a batch need not ask.
func (b *Batch) Frame(payload []byte) []byte {
	need := 48
	if len(payload) <= InlineBytes {
		need += len(payload)
	}
	if len(b.stage)+need > cap(b.stage) {
		b.Seal() // the pieces keep the old stage alive
		b.stage, b.from = make([]byte, 0, stageBytes), 0
	}
	n := len(b.stage)
	if len(payload) <= InlineBytes {
		b.stage = b.stage[:n+48+len(payload)]
		copy(b.stage[n+48:], payload)
	} else {
		b.stage = b.stage[:n+48]
		b.all = append(b.all, b.stage[b.from:], payload)
		b.from = len(b.stage)
	}
	b.Bytes += 48 + len(payload)
	b.frames++
	return b.stage[n : n+48]
}

// SpaceRoom reports whether a frame whose payload is written in place (Space) still fits.
// One frame always fits into an empty batch.
func (b *Batch) SpaceRoom(n int) bool {
	return b.frames == 0 || b.Bytes+48+n <= BatchBytes && len(b.stage)+48+n <= cap(b.stage) && len(b.all)+2 < BatchPieces
}

// Space adds a frame with n bytes of payload and returns where header and payload are to be
// written before the batch is sent. Like Frame it works without room.
func (b *Batch) Space(n int) (raw, payload []byte) {
	if len(b.stage)+48+n > cap(b.stage) {
		b.Seal()
		b.stage, b.from = make([]byte, 0, max(stageBytes, 48+n)), 0
	}
	at := len(b.stage)
	b.stage = b.stage[:at+48+n]
	b.Bytes += 48 + n
	b.frames++
	return b.stage[at : at+48], b.stage[at+48:]
}

// LedRoom reports whether a frame with n bytes written in place before so much payload
// (Led) still fits. One frame always fits into an empty batch.
func (b *Batch) LedRoom(n, payload int) bool {
	need := 48 + n
	if payload <= InlineBytes {
		need += payload
	}
	return b.frames == 0 || b.Bytes+48+n+payload <= BatchBytes && len(b.stage)+need <= cap(b.stage) && len(b.all)+2 < BatchPieces
}

// Led adds a frame of n bytes that are written in place, as those of Space, with payload
// behind them, which is copied or referenced as that of Frame. Like these it works without
// room.
func (b *Batch) Led(n int, payload []byte) (raw, front []byte) {
	if len(payload) <= InlineBytes {
		raw, all := b.Space(n + len(payload))
		copy(all[n:], payload)
		return raw, all[:n]
	}
	raw, front = b.Space(n)
	b.all = append(b.all, b.stage[b.from:], payload)
	b.from = len(b.stage)
	b.Bytes += len(payload)
	return raw, front
}

// Seal ends the building: what is to be written is in Pieces from now on. It tells how much is in the batch,
// as Frames and Bytes do.
func (b *Batch) Seal() (frames, bytes int) {
	if b.from < len(b.stage) {
		b.all = append(b.all, b.stage[b.from:])
		b.from = len(b.stage)
	}
	b.Pieces = b.all
	return b.frames, b.Bytes
}

// Frames is how many frames are in the batch.
func (b *Batch) Frames() int { return b.frames }

// Left is how many bytes are left to write.
func (b *Batch) Left() (n int) {
	for _, p := range b.Pieces {
		n += len(p)
	}
	return n
}

// unwritten is memory on its way to a link, in pieces.
type unwritten struct {
	// Pieces are what is left to write. Wrote alone changes them.
	Pieces [][]byte

	all [][]byte // those that were written too
}

// Wrote removes the first n bytes of Pieces and reports whether all is written.
func (u *unwritten) Wrote(n int) bool {
	for ; len(u.Pieces) > 0; u.Pieces = u.Pieces[1:] {
		p := u.Pieces[0]
		if n < len(p) {
			u.Pieces[0] = p[n:]
			return false
		}
		n -= len(p)
	}
	return true
}
