package rtrs

import (
	"encoding/binary"
	"time"
)

// The store of the simulator's server, and the model of what may be read from it.

const sectorLen = 64 // bytes

// usr is the user header of the simulator's requests, a small RNBD.
type usr struct {
	kind   byte // below
	device uint32
	id     uint64 // of a write
	sector uint32
	count  uint32
}

const (
	usrOpen  = 1 // READ of 8 bytes: the device
	usrRead  = 2
	usrWrite = 3
	usrFlush = 4 // READ without data
	usrBad   = 5 // a request that the user refuses with an error
	usrShort = 6 // READ that the store fills only in part
	usrLen   = 32
)

func (u *usr) append(b []byte) []byte {
	le := binary.LittleEndian
	b = append(b, u.kind, 0, 0, 0)
	b = le.AppendUint32(b, u.device)
	b = le.AppendUint64(b, u.id)
	b = le.AppendUint32(b, u.sector)
	b = le.AppendUint32(b, u.count)
	return append(b, make([]byte, usrLen-24)...)
}

func parseUsr(b []byte) (u usr) {
	le := binary.LittleEndian
	return usr{b[0], le.Uint32(b[4:]), le.Uint64(b[8:]), le.Uint32(b[16:]), le.Uint32(b[20:])}
}

// fill writes the content that write id puts into a sector; check says whether
// b is that of one write to that sector, and of which.
func fill(b []byte, id uint64, sector uint32) {
	for i := 0; i < sectorLen; i += 16 {
		binary.LittleEndian.PutUint64(b[i:], id)
		binary.LittleEndian.PutUint64(b[i+8:], uint64(sector)<<32|uint64(i)^id*0x9e3779b97f4a7c15)
	}
}

func check(b []byte, sector uint32) (id uint64, ok bool) {
	var want [sectorLen]byte
	id = binary.LittleEndian.Uint64(b)
	fill(want[:], id, sector)
	return id, string(want[:]) == string(b[:sectorLen])
}

// modelWrite is a write as its client sees it. Times are places in the world's
// order.
type modelWrite struct {
	id         uint64
	start, end int // end: 0 while it runs
	at         uint32
	certain    []int // for each of its sectors: from when it is known to be there, 0: not known
	failed     bool
	copies     int // of it at a store
	inc        int // of the client
}

// sector is what the store holds, and what is known about who wrote it.
type sector struct {
	bytes  [sectorLen]byte
	writes []*modelWrite
}

// store is the medium, which survives its servers.
type store struct {
	w       *world
	sectors []sector
	byID    map[uint64]*modelWrite
	latency time.Duration
	stalled time.Duration // until when nothing happens
	hold    func(id uint64) bool
	inc     map[string]int // by client's name: which of its lives may write
}

func newStore(w *world, n int) *store {
	s := &store{w: w, sectors: make([]sector, n), byID: map[uint64]*modelWrite{}, latency: 2 * time.Millisecond, inc: map[string]int{}}
	zero := &modelWrite{end: 1, certain: make([]int, n)}
	for i := range n {
		zero.certain[i] = 1
	}
	s.byID[0] = zero
	for i := range s.sectors {
		fill(s.sectors[i].bytes[:], 0, uint32(i))
		s.sectors[i].writes = []*modelWrite{zero}
	}
	return s
}

// begin records that a client submits write id.
func (s *store) begin(id uint64, inc int, at, n uint32) {
	s.w.order++
	m := &modelWrite{id: id, start: s.w.order, inc: inc, at: at, certain: make([]int, n)}
	s.byID[id] = m
	for i := at; i < at+n; i++ {
		s.sectors[i].writes = append(s.sectors[i].writes, m)
	}
}

// ended records that the client knows the outcome of write id.
func (s *store) ended(id uint64, err error) {
	s.w.order++
	m := s.byID[id]
	m.end = s.w.order
	if m.failed = err != nil; !m.failed {
		for i := range m.certain {
			if m.certain[i] == 0 {
				m.certain[i] = m.end
			}
		}
	}
}

// touch is the moment when write id of client name reaches a sector.
func (s *store) touch(name string, id uint64, at uint32, b []byte) {
	m := s.byID[id]
	got, ok := check(b, at)
	if !ok || got != id {
		s.w.fail("write %d stores into sector %d what is not its data (of %d)", id, at, got)
	}
	if m.end != 0 && !m.failed {
		s.w.fail("B3: write %d touches sector %d after it completed", id, at)
	}
	if m.inc < s.inc[name] {
		s.w.fail("B6: write %d of life %d of client %s touches sector %d in life %d", id, m.inc, name, at, s.inc[name])
	}
	copy(s.sectors[at].bytes[:], b)
	s.w.note("sector %d is of write %d now", at, id)
}

// saw checks a read, begun at start, that found b in a sector.
func (s *store) saw(start int, at uint32, b []byte) {
	id, ok := check(b, at)
	m := s.byID[id]
	if !ok || m == nil {
		s.w.fail("B8: sector %d reads as what nobody wrote there (%x)", at, b[:16])
	}
	for _, x := range s.sectors[at].writes {
		if c := x.certain[at-x.at]; x != m && m.end != 0 && m.end < x.start && c != 0 && c < start {
			s.w.fail("B2: sector %d reads as write %d, which ended at %d; write %d began at %d and had happened at %d, before the read began at %d",
				at, id, m.end, x.id, x.start, c, start)
		}
	}
	s.w.order++
	if c := &m.certain[at-m.at]; *c == 0 {
		*c = s.w.order
	}
}
