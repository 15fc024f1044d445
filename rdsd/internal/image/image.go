package image

import (
	"io"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/blk/nbd"
)

// Source is what is copied. Its methods may be called at the same time, Extents
// by one goroutine.
type Source interface {
	io.ReaderAt
	Size() int64 // bytes
	// Extents says what is data and what is zeroes from off on: at least one
	// extent, together at most n bytes.
	Extents(off, n int64) ([]blk.Extent, error)
	// Block is what offsets and lengths have to be multiples of, bytes; a length
	// may also end at Size.
	Block() int64
}

// Target is what is copied to. It can be read, so that it can be compared.
type Target interface {
	io.ReaderAt
	io.WriterAt
	Size() int64
	Block() int64
	Zero(off, n int64) error // makes n bytes at off read as zeroes
	Flush() error            // makes durable what was written
	Blank() bool             // what is not written reads as zeroes: there was nothing before
}

// Volume is an NBD export as a source and a target.
type Volume struct{ *nbd.Client }

// Extents is block status.
func (v Volume) Extents(off, n int64) ([]blk.Extent, error) { return v.BlockStatus(off, n) }

// Block is the logical block size.
func (v Volume) Block() int64 { return int64(v.Info().LogicalBlock) }

// Zero writes zeroes, giving space back where the store can.
func (v Volume) Zero(off, n int64) error { return v.WriteZeroes(off, n) }

// Blank is false: a volume had something on it before.
func (v Volume) Blank() bool { return false }
