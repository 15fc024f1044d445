package cong

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/bits"
)

// Ports and the size of a map on the wire.
const (
	Ports = 1 << 16
	Bytes = Ports / 8
)

// ErrSize is returned for a map that is not 8192 bytes long.
var ErrSize = errors.New("cong: a congestion map has 8192 bytes")

// Map says which ports are congested. The zero Map says "none" and takes no
// memory for bits until the first is set, so that an idle peer stays small.
type Map struct {
	w *[Ports / 64]uint64 // bit p%64 of word p/64; nil: all clear
	n int                 // bits set
}

// Congested reports whether bit p is set.
func (m *Map) Congested(p uint16) bool {
	return m.w != nil && m.w[p/64]&(1<<(p%64)) != 0
}

// Len counts the congested ports.
func (m *Map) Len() int { return m.n }

// Set marks p congested or clear and reports whether that changed anything.
func (m *Map) Set(p uint16, congested bool) bool { return m.SetBy(nil, p, congested) }

// SetBy is Set with memory that another map left.
func (m *Map) SetBy(s *Spare, p uint16, congested bool) bool {
	if m.Congested(p) == congested {
		return false
	}
	if m.w == nil {
		m.w = s.take()
	}
	m.w[p/64] ^= 1 << (p % 64)
	if congested {
		m.n++
	} else if m.n--; m.n == 0 {
		s.leave(m.w)
		m.w = nil
	}
	return true
}

// Spare keeps the memory of one map that has no congested port any more, for the next that
// gets one: a peer may have a port congested and clear again as often as it likes. The zero Spare
// is empty; a nil one keeps nothing.
type Spare struct {
	w *[Ports / 64]uint64 // all clear
}

func (s *Spare) take() *[Ports / 64]uint64 {
	if s == nil || s.w == nil {
		return new([Ports / 64]uint64)
	}
	w := s.w
	s.w = nil
	return w
}

func (s *Spare) leave(w *[Ports / 64]uint64) {
	if s != nil {
		s.w = w
	}
}

// Next is the first congested port from p on, if there is one.
func (m *Map) Next(p int) (port uint16, ok bool) {
	if m.w == nil {
		return 0, false
	}
	for i, mask := p/64, ^uint64(0)<<(p%64); i < len(m.w); i, mask = i+1, ^uint64(0) {
		if w := m.w[i] & mask; w != 0 {
			return uint16(i*64 + bits.TrailingZeros64(w)), true
		}
	}
	return 0, false
}

// Each calls f for every congested port, in order.
func (m *Map) Each(f func(p uint16)) {
	if m.w == nil {
		return
	}
	for i, w := range m.w {
		for ; w != 0; w &= w - 1 {
			f(uint16(i*64 + bits.TrailingZeros64(w)))
		}
	}
}

// AppendTo appends the 8192 bytes of the wire form: bit p is bit p%8 of byte
// p/8, little-endian bit order (RDS_CONG_MAP, net/rds/cong.c).
func (m *Map) AppendTo(b []byte) []byte {
	if m.w == nil {
		return append(b, zeros[:]...)
	}
	for _, w := range m.w {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

var zeros [Bytes]byte

// Replace takes over a whole map from its wire form, a word at a time: it costs the
// same however many ports differ from before. freed has bit g set if a port p with p
// mod 64 = g became clear; differs is false if nothing changed. changed, when not nil,
// is called for the first ports that differ, most of them, in order.
func (m *Map) Replace(b []byte, most int, changed func(p uint16, congested bool)) (freed uint64, differs bool, err error) {
	return m.ReplaceBy(nil, b, most, changed)
}

// ReplaceBy is Replace with memory that another map left.
func (m *Map) ReplaceBy(s *Spare, b []byte, most int, changed func(p uint16, congested bool)) (freed uint64, differs bool, err error) {
	if len(b) != Bytes {
		return 0, false, ErrSize
	}
	if m.w == nil {
		// Most peers never have a congested port: their map takes no memory.
		if bytes.Equal(b, zeros[:]) {
			return 0, false, nil
		}
		m.w = s.take()
	}
	m.n = 0
	for i := range m.w {
		was, now := m.w[i], binary.LittleEndian.Uint64(b[i*8:])
		m.n += bits.OnesCount64(now)
		// 1,024 words, of which few differ: a peer decides how often its map comes.
		if was == now {
			continue
		}
		m.w[i] = now
		// Bit g stands for the ports that are g modulo 64, which is a port's place in its word
		// (net/rds/ib_recv.c, rds_ib_cong_recv).
		freed |= was &^ now
		differs = true
		for d := now ^ was; d != 0 && changed != nil && most > 0; d &= d - 1 {
			bit := bits.TrailingZeros64(d)
			changed(uint16(i*64+bit), now&(1<<bit) != 0)
			most--
		}
	}
	if m.n == 0 {
		s.leave(m.w)
		m.w = nil
	}
	return freed, differs, nil
}
