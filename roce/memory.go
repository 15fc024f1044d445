package roce

import (
	"errors"
	"math/rand"
)

// Rights are what a peer may do with a key.
type Rights uint8

// Rights of a peer.
const (
	RemoteRead  Rights = 1 << iota // READ it
	RemoteWrite                    // WRITE it
	PeerRevokes                    // end the key with SEND with invalidate
)

// AnyQP stands for all queue pairs. No reliable connection has this number.
const AnyQP = 0

// Why a peer may not touch memory. To the peer all of them are NAKRemoteAccess.
var (
	ErrKey    = errors.New("roce: there is no such key (any more)")
	ErrQP     = errors.New("roce: the key is for another queue pair")
	ErrRights = errors.New("roce: the key does not give this right")
	ErrRange  = errors.New("roce: the key is for other memory")
)

// Memory knows which memory peers may touch, by key, on one address.
//
// A key is a count, encrypted: it is hard to guess as far as rnd is, and comes again only
// after all others. 0 is none, because messages without bytes carry it.
//
// Nobody is under way in a region between two calls: each packet asks anew, so that after
// Revoke no further byte is placed or read, not even of a message that has begun. What Access
// gave out for sending is in use until Device.Sent, which Take tells.
type Memory struct {
	secret [4]uint32
	count  uint32
	live   map[uint32]*region
	bound  map[uint32]*region // by queue pair, the first of the regions that are for it alone
	spare  *region            // to be used again, linked by next
	guard  func(p []byte) error
}

type region struct {
	p          []byte
	addr       uint64 // of p's first byte, as peers say it; addr + len(p) does not wrap
	key        uint32
	qp         uint32
	rights     Rights
	full       int     // bytes from the first one on that were written, without a gap
	lent       int     // packets of a burst that refer to p
	prev, next *region // of the same queue pair
}

// NewMemory makes a Memory without keys. Whoever can predict rnd can guess keys.
func NewMemory(rnd *rand.Rand) *Memory {
	m := &Memory{count: rnd.Uint32(), live: map[uint32]*region{}, bound: map[uint32]*region{}}
	for i := range m.secret {
		m.secret[i] = rnd.Uint32()
	}
	return m
}

// Expose gives peers rights to p, whose first byte they call addr: 0 for memory that is
// based at zero. If qp is not AnyQP only the peer of that queue pair has them, and only until
// Forget. It fails with ErrRange if p would not end within 64 bits.
func (m *Memory) Expose(p []byte, addr uint64, rights Rights, qp uint32) (key uint32, err error) {
	if addr+uint64(len(p)) < addr {
		return 0, ErrRange
	}
	r := m.take()
	*r = region{p: p, addr: addr, key: m.newKey(), qp: qp, rights: rights}
	m.live[r.key] = r
	if qp != AnyQP {
		if r.next = m.bound[qp]; r.next != nil {
			r.next.prev = r
		}
		m.bound[qp] = r
	}
	return r.key, nil
}

// take is a region that nobody has.
func (m *Memory) take() *region {
	r := m.spare
	if r == nil {
		return &region{}
	}
	m.spare = r.next
	return r
}

// newKey is the next key that is not in use.
func (m *Memory) newKey() uint32 {
	for {
		m.count++
		key := m.encrypt(m.count)
		if _, taken := m.live[key]; key != 0 && !taken {
			return key
		}
	}
}

// encrypt is a permutation of 32 bits, so that different counts are different keys: a Feistel
// network of four rounds.
func (m *Memory) encrypt(count uint32) uint32 {
	left, right := count>>16, count&0xffff
	for _, s := range m.secret {
		v := (right ^ s) * 0x9e3779b1
		v = (v ^ v>>15 + s) * 0x85ebca6b
		left, right = right, left^v>>16
	}
	return left<<16 | right
}

// Access is the memory that the peer of qp means with key and the n bytes from addr on, if
// the key gives it need. Without bytes there is nothing to protect, and no key is looked at:
// kernels send such messages with key 0.
func (m *Memory) Access(qp, key uint32, addr, n uint64, need Rights) ([]byte, error) {
	_, p, err := m.access(qp, key, addr, n, need)
	return p, err
}

// access is Access, and tells the region; without bytes there is none.
func (m *Memory) access(qp, key uint32, addr, n uint64, need Rights) (*region, []byte, error) {
	if n == 0 {
		return nil, nil, nil
	}
	r := m.live[key]
	switch {
	case r == nil:
		return nil, nil, ErrKey
	case r.qp != AnyQP && r.qp != qp:
		return nil, nil, ErrQP
	case r.rights&need != need:
		return nil, nil, ErrRights
	}
	// Differences, because sums of what a peer says may wrap.
	size, off := uint64(len(r.p)), addr-r.addr
	if addr < r.addr || off > size || n > size-off {
		return nil, nil, ErrRange
	}
	return r, r.p[off:][:n:n], nil
}

// wrote counts the n bytes from addr on, which are in their place. A peer that writes one
// part twice and leaves another out is not credited with both.
func (r *region) wrote(addr uint64, n int) {
	if off := int(addr - r.addr); off <= r.full {
		r.full = max(r.full, off+n)
	}
}

// Invalidate ends key because the peer of qp asked for it, and tells as Take does how much
// was written.
func (m *Memory) Invalidate(qp, key uint32) (filled int, err error) {
	r := m.live[key]
	switch {
	case r == nil:
		return 0, ErrKey
	case r.qp != AnyQP && r.qp != qp:
		return 0, ErrQP
	case r.rights&PeerRevokes == 0:
		return 0, ErrRights
	}
	filled = r.full
	m.remove(r)
	return filled, nil
}

// Revoke ends key, and reports whether there was one: a peer may have been faster.
func (m *Memory) Revoke(key uint32) bool {
	r := m.live[key]
	if r == nil {
		return false
	}
	m.remove(r)
	return true
}

// Take is Revoke, and tells how many bytes peers have written, from the first one on and
// without a gap. It is not idle while a burst refers to the memory because a peer READs it:
// until Device.Sent the memory must stay as it is.
func (m *Memory) Take(key uint32) (filled int, idle bool) {
	r := m.live[key]
	if r == nil {
		return 0, true
	}
	filled, idle = r.full, r.lent == 0
	m.remove(r)
	return filled, idle
}

// Guard has f called before bytes of a peer are placed in p, which is exposed memory. If f
// fails they are not: with ErrNotNow the peer is told that the receiver is not ready (RNR), and
// sends them again a little later; with another error the queue pair fails. f must not block.
func (m *Memory) Guard(f func(p []byte) error) { m.guard = f }

// Forget ends all keys that are for qp alone, which is no more.
func (m *Memory) Forget(qp uint32) {
	for r := m.bound[qp]; r != nil; r = m.bound[qp] {
		m.remove(r)
	}
}

// Close ends all keys.
func (m *Memory) Close() {
	for key := range m.live {
		m.Take(key)
	}
}

// Len is how many keys there are.
func (m *Memory) Len() int { return len(m.live) }

// remove takes r out of all it is in.
func (m *Memory) remove(r *region) {
	delete(m.live, r.key)
	if r.next != nil {
		r.next.prev = r.prev
	}
	switch {
	case r.prev != nil:
		r.prev.next = r.next
	case r.next != nil:
		m.bound[r.qp] = r.next
	default:
		delete(m.bound, r.qp) // where no region for all queue pairs is
	}
	if r.lent > 0 {
		return // the burst has it; it is not used again
	}
	*r = region{next: m.spare}
	m.spare = r
}
