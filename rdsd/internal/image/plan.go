package image

import (
	"bytes"

	"github.com/rdsd/rdsd/rdserr"
)

const (
	// pieceBytes is how much one goroutine moves at once.
	pieceBytes = 1 << 20
	// zeroBytes is the longest run of zeroes handed out as one piece.
	zeroBytes = 256 << 20
	// pageBytes is what pieces begin and end with, unless a block is larger.
	pageBytes = 4096
	// sparseBytes is the shortest run of zeroes inside data for which a target
	// that had something on it before is given a hole: shorter ones cost more as
	// a request of their own.
	sparseBytes = 64 << 10
)

// piece is a range that is data, or reads as zeroes.
type piece struct {
	off, n int64
	zero   bool
}

// pieces hands out all of src in order, in pieces that begin at multiples of
// align and end there or at the end. A block that is data in part is data.
func pieces(src Source, align int64, each func(piece) error) error {
	align = max(align, src.Block(), pageBytes)
	size := src.Size()
	var given int64 // everything before it has been handed out
	give := func(to int64, zero bool) error {
		most := int64(pieceBytes)
		if zero {
			most = zeroBytes
		}
		for given < to {
			n := min(to-given, most)
			if err := each(piece{given, n, zero}); err != nil {
				return err
			}
			given += n
		}
		return nil
	}
	down := func(at int64) int64 {
		if at == size {
			return size
		}
		return at - at%align
	}
	for known := int64(0); known < size; {
		extents, err := src.Extents(known, size-known)
		if err != nil {
			return err
		}
		if len(extents) == 0 || extents[0].Len == 0 {
			return rdserr.With(rdserr.ErrProtocol, "the source does not say what is at %d", known)
		}
		for _, e := range extents {
			end := known + int64(min(e.Len, uint64(size-known)))
			from, to := max(given, down(min(known+align-1, size))), down(end)
			if e.Zero && to > from {
				if err := give(from, false); err != nil {
					return err
				}
				if err := give(to, true); err != nil {
					return err
				}
			}
			known = end
		}
		if err := give(down(known), false); err != nil {
			return err
		}
	}
	return nil
}

// isZero tells whether all of b is.
func isZero(b []byte) bool {
	for len(b) > 0 {
		n := min(len(b), len(zeroPage))
		if !bytes.Equal(b[:n], zeroPage[:n]) {
			return false
		}
		b = b[n:]
	}
	return true
}

var zeroPage [pageBytes]byte
