package volumetest

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"slices"
	"testing"
)

// blockSize is that of the volumes: what is written whole or not at all.
const blockSize = 4096

// disk knows what may be on a volume. A block belongs to one worker at a time,
// and so do its fields.
type disk struct {
	blocks []block
}

// block is what one block may hold: generations, 0 being zeroes.
type block struct {
	// may lists what a read may bring: the last write that completed, or what a read has
	// brought since; and the writes without an outcome. A read decides between them: what
	// it did not bring may never come (B2, B3).
	may []uint64
	// lost lists what there may be after a power cut, the present aside: what was there at
	// the last flush and everything written since (B1).
	lost []uint64
}

func newDisk(blocks int) *disk {
	d := &disk{make([]block, blocks)}
	for i := range d.blocks {
		d.blocks[i] = block{[]uint64{0}, []uint64{0}}
	}
	return d
}

// begin records that generation g is being written.
func (b *block) begin(g uint64) {
	b.may = add(b.may, g)
	b.lost = add(b.lost, g)
}

// wrote records that generation g has been written.
func (b *block) wrote(g uint64) { b.may = append(b.may[:0], g) }

// saw records that a read has brought g.
func (b *block) saw(g uint64) error {
	if !slices.Contains(b.may, g) {
		return fmt.Errorf("generation %d is there; %v may be", g, b.may)
	}
	b.wrote(g)
	return nil
}

// flushed records that a flush has completed since all of may was written.
func (b *block) flushed() { b.lost = append(b.lost[:0], b.may...) }

// powerCut records that writes that were not flushed may be lost.
func (b *block) powerCut() { b.may = append(b.may[:0], b.lost...) }

func add(s []uint64, g uint64) []uint64 {
	if slices.Contains(s, g) {
		return s
	}
	return append(s, g)
}

const blockMagic = 0x7264736476743031

// fill makes what generation g of block n holds.
func fill(p []byte, n int, g uint64) {
	if g == 0 {
		clear(p)
		return
	}
	le := binary.LittleEndian
	le.PutUint64(p[8:], blockMagic)
	le.PutUint64(p[16:], uint64(n))
	le.PutUint64(p[24:], g)
	x := g*0x9e3779b97f4a7c15 ^ uint64(n)
	for at := 32; at < len(p); at += 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		le.PutUint64(p[at:], x)
	}
	le.PutUint64(p, uint64(crc32.Checksum(p[8:], castagnoli))|1<<32)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// generation tells what p, block n, holds.
func generation(p []byte, n int) (uint64, error) {
	le := binary.LittleEndian
	sum := le.Uint64(p)
	if sum == 0 {
		for _, x := range p {
			if x != 0 {
				return 0, fmt.Errorf("block %d begins with zeroes and goes on with something", n)
			}
		}
		return 0, nil
	}
	if le.Uint64(p[8:]) != blockMagic || sum != uint64(crc32.Checksum(p[8:], castagnoli))|1<<32 {
		return 0, fmt.Errorf("block %d holds bytes that nobody wrote: % x", n, p[:32])
	}
	if of := le.Uint64(p[16:]); of != uint64(n) {
		return 0, fmt.Errorf("block %d holds what was written to block %d", n, of)
	}
	return le.Uint64(p[24:]), nil
}

// take compares what a read of blocks from at on has brought.
func (d *disk) take(p []byte, at int) error {
	for i := 0; i < len(p)/blockSize; i++ {
		g, err := generation(p[i*blockSize:][:blockSize], at+i)
		if err == nil {
			err = d.blocks[at+i].saw(g)
		}
		if err != nil {
			return fmt.Errorf("block %d: %w", at+i, err)
		}
	}
	return nil
}

// inFile compares the backing file, once nobody writes any more.
func (d *disk) inFile(t *testing.T, path string) {
	t.Helper()
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(p) != len(d.blocks)*blockSize {
		t.Fatalf("%s has %d bytes, want %d", path, len(p), len(d.blocks)*blockSize)
	}
	bad := 0
	for i := range d.blocks {
		if err := d.take(p[i*blockSize:][:blockSize], i); err != nil {
			if bad++; bad < 10 {
				t.Errorf("in the file: %v", err)
			}
		}
	}
}

// TestTheModel: the model would notice.
func TestTheModel(t *testing.T) {
	d := newDisk(2)
	b := &d.blocks[1]
	p := make([]byte, 2*blockSize)
	put := func(g uint64) error {
		fill(p[blockSize:], 1, g)
		return d.take(p, 0)
	}
	b.begin(7)
	b.wrote(7)
	if err := put(7); err != nil {
		t.Error(err)
	}
	if put(0) == nil || put(6) == nil {
		t.Error("a write that is lost is not noticed")
	}
	b.begin(8) // without an outcome
	b.begin(9)
	if err := put(8); err != nil {
		t.Error(err)
	}
	if put(7) == nil || put(9) == nil {
		t.Error("a read that goes back, or a ghost, is not noticed")
	}
	b.powerCut()
	if err := put(0); err != nil {
		t.Error(err)
	}
	b.begin(10)
	b.wrote(10)
	b.flushed()
	b.begin(11)
	b.powerCut()
	if put(8) == nil {
		t.Error("a flushed write that is lost is not noticed")
	}
	if put(10) != nil {
		t.Error("what was flushed is not allowed")
	}
	fill(p[blockSize:], 0, 10)
	if d.take(p, 0) == nil {
		t.Error("another block's content is not noticed")
	}
	fill(p[blockSize:], 1, 10)
	p[blockSize+2000] ^= 1
	if d.take(p, 0) == nil {
		t.Error("a changed bit is not noticed")
	}
}
