package roce

import (
	"errors"
	"math"
	"math/rand"
	"testing"
)

func newMemory(seed int64) *Memory { return NewMemory(rand.New(rand.NewSource(seed))) }

func expose(t testing.TB, m *Memory, p []byte, addr uint64, rights Rights, qp uint32) uint32 {
	key, err := m.Expose(p, addr, rights, qp)
	if err != nil || key == 0 {
		t.Fatalf("Expose: key %#x, %v", key, err)
	}
	return key
}

// TestAccess is at every edge of a region in the middle, at zero and at the end of all
// addresses.
func TestAccess(t *testing.T) {
	const size = 100
	for _, base := range []uint64{0, 0x1000, math.MaxUint64 - size} {
		m, p := newMemory(1), make([]byte, size, 2*size)
		key := expose(t, m, p, base, RemoteWrite, AnyQP)
		for _, c := range []struct {
			addr, n uint64 // addr from base on
			want    error
		}{
			{0, size, nil}, {0, 1, nil}, {size - 1, 1, nil}, {40, 60, nil},
			{0, size + 1, ErrRange}, {1, size, ErrRange}, {size - 1, 2, ErrRange}, {size, 1, ErrRange}, {size + 1, 1, ErrRange},
			{math.MaxUint64, 1, ErrRange}, {math.MaxUint64, 2, ErrRange}, {math.MaxUint64, size, ErrRange},
			{1 << 63, 1, ErrRange}, {0, math.MaxUint64, ErrRange}, {1, math.MaxUint64, ErrRange}, {size, math.MaxUint64 - size + 1, ErrRange},
			{0, 0, nil}, {size, 0, nil}, {size + 1, 0, nil},
		} {
			b, err := m.Access(7, key, base+c.addr, c.n, RemoteWrite)
			if !errors.Is(err, c.want) {
				t.Errorf("base %#x: %d bytes from %d on: %v, want %v", base, c.n, c.addr, err, c.want)
				continue
			}
			if err != nil || c.n == 0 {
				if b != nil {
					t.Errorf("base %#x: %d bytes from %d on: there is memory", base, c.n, c.addr)
				}
				continue
			}
			if uint64(len(b)) != c.n || cap(b) != len(b) || &b[0] != &p[c.addr] {
				t.Errorf("base %#x: %d bytes from %d on: other memory", base, c.n, c.addr)
			}
		}
	}
	for _, addr := range []uint64{math.MaxUint64 - size + 1, math.MaxUint64} {
		m := newMemory(1)
		if key, err := m.Expose(make([]byte, size), addr, RemoteWrite, AnyQP); key != 0 || !errors.Is(err, ErrRange) || m.Len() != 0 {
			t.Errorf("exposed at %#x: key %#x, %v", addr, key, err)
		}
	}
}

func TestRights(t *testing.T) {
	m, p := newMemory(1), make([]byte, 8)
	for have := range Rights(8) {
		for need := range Rights(8) {
			key := expose(t, m, p, 0, have, AnyQP)
			want := error(nil)
			if have&need != need {
				want = ErrRights
			}
			if _, err := m.Access(1, key, 0, 8, need); !errors.Is(err, want) {
				t.Errorf("rights %03b, needed %03b: %v", have, need, err)
			}
			want = nil
			if have&PeerRevokes == 0 {
				want = ErrRights
			}
			if _, err := m.Invalidate(1, key); !errors.Is(err, want) {
				t.Errorf("rights %03b: invalidated: %v", have, err)
			}
			if m.Revoke(key) != (want != nil) {
				t.Errorf("rights %03b: the key is there: %v", have, want == nil)
			}
		}
	}
	if m.Len() != 0 {
		t.Errorf("%d keys are left", m.Len())
	}
}

// TestKeysOfQueuePairs: a key for one queue pair is not for others, and ends with it.
func TestKeysOfQueuePairs(t *testing.T) {
	m, p := newMemory(1), make([]byte, 8)
	const all = RemoteRead | RemoteWrite | PeerRevokes
	var keys [5][3]uint32 // of queue pairs 0 (any) to 4
	for i := range 3 {
		for qp := range keys {
			keys[qp][i] = expose(t, m, p, 0, all, uint32(qp))
		}
	}
	check := func(when string, gone func(qp, i int) bool) {
		t.Helper()
		for qp := range keys {
			for i, key := range keys[qp] {
				for by := uint32(1); by < 5; by++ {
					want := error(nil)
					switch {
					case gone(qp, i):
						want = ErrKey
					case qp != AnyQP && int(by) != qp:
						want = ErrQP
					}
					if _, err := m.Access(by, key, 0, 1, all); !errors.Is(err, want) {
						t.Errorf("%s: key %d of %d by %d: %v, want %v", when, i, qp, by, err, want)
					}
				}
			}
		}
	}
	check("first", func(int, int) bool { return false })
	if _, err := m.Invalidate(2, keys[1][0]); !errors.Is(err, ErrQP) {
		t.Errorf("a key of another queue pair is invalidated: %v", err)
	}
	// The first, the middle and the last of a queue pair's list, each by itself.
	for i := range 3 {
		if !m.Revoke(keys[1+i][i]) || m.Revoke(keys[1+i][i]) {
			t.Errorf("key %d: revoked twice, or never", i)
		}
	}
	if _, err := m.Invalidate(4, keys[AnyQP][1]); err != nil {
		t.Error(err)
	}
	some := func(qp, i int) bool { return qp-1 == i || qp == AnyQP && i == 1 }
	check("one of each revoked", some)
	m.Forget(2)
	m.Forget(9)
	check("2 forgotten", func(qp, i int) bool { return qp == 2 || some(qp, i) })
	if m.Forget(1); m.Len() != 2+2+3 {
		t.Errorf("%d keys are left", m.Len())
	}
	m.Forget(3)
	m.Forget(4)
	if m.Len() != 2 || len(m.bound) != 0 {
		t.Errorf("%d keys are left, %d queue pairs have some", m.Len(), len(m.bound))
	}
}

// TestKeysComeOnce: no key is given twice, whatever is revoked in between, and what another
// Memory gives tells nothing.
func TestKeysComeOnce(t *testing.T) {
	n := 1 << 18
	if testing.Short() {
		n = 1 << 14
	}
	m, other, p := newMemory(1), newMemory(2), make([]byte, 1)
	seen, same, near := make(map[uint32]bool, n), 0, 0
	var last uint32
	for range n {
		key := expose(t, m, p, 0, RemoteRead, AnyQP)
		if seen[key] {
			t.Fatalf("key %#x came again after %d", key, len(seen))
		}
		seen[key] = true
		m.Revoke(key)
		if _, err := m.Access(1, key, 0, 1, RemoteRead); !errors.Is(err, ErrKey) {
			t.Fatalf("a key that was revoked: %v", err)
		}
		if key-last+256 < 512 {
			near++
		}
		last = key
		if k := expose(t, other, p, 0, RemoteRead, AnyQP); k == key {
			same++
		} else {
			other.Revoke(k)
		}
	}
	if same > 2 || near > 2+n>>16 {
		t.Errorf("of %d keys %d are those of another seed, %d near the one before", n, same, near)
	}
}

// TestKeysAfterTheirEnd: when the count comes round, keys in use and zero are left out.
func TestKeysAfterTheirEnd(t *testing.T) {
	m, p := newMemory(1), make([]byte, 1)
	start := m.count
	kept := expose(t, m, p, 0, RemoteRead, AnyQP)
	next := expose(t, m, p, 0, RemoteWrite, AnyQP)
	m.Revoke(next)
	m.count = start
	if key := expose(t, m, p, 0, RemoteWrite, AnyQP); key != next {
		t.Errorf("key %#x, want %#x: %#x is in use", key, next, kept)
	}
	if _, err := m.Access(1, kept, 0, 1, RemoteRead); err != nil {
		t.Errorf("the key that was in use: %v", err)
	}
	// Without secrets count 0 is key 0.
	if m.secret, m.count = [4]uint32{}, math.MaxUint32; m.encrypt(0) != 0 {
		t.Fatal("there is no count for key 0")
	}
	expose(t, m, p, 0, RemoteWrite, AnyQP) // which fails on key 0
}

func TestMemoryAllocates(t *testing.T) {
	m, p := newMemory(1), make([]byte, 4096)
	round := func() {
		a, _ := m.Expose(p, 0, RemoteWrite, 5)
		b, _ := m.Expose(p, 0, RemoteWrite, AnyQP)
		if _, err := m.Access(5, a, 10, 1024, RemoteWrite); err != nil {
			t.Fatal(err)
		}
		m.Revoke(b)
		m.Revoke(a)
	}
	for range 1000 {
		round()
	}
	if n := testing.AllocsPerRun(1000, round); n != 0 {
		t.Errorf("%v allocations for two keys", n)
	}
}

// TestMemoryClose ends all keys at once, those of one queue pair as well.
func TestMemoryClose(t *testing.T) {
	m := NewMemory(rand.New(rand.NewSource(1)))
	var keys []uint32
	for i := range uint32(5) {
		key, err := m.Expose(make([]byte, 8), 0, RemoteWrite, i%2)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
	}
	m.Close()
	for i, key := range keys {
		if _, err := m.Access(uint32(i%2), key, 0, 8, RemoteWrite); err != ErrKey {
			t.Errorf("key %d of closed memory: %v", i, err)
		}
	}
	if m.Len() != 0 {
		t.Errorf("%d keys are left", m.Len())
	}
}
