package shm

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestLeftAlone: of a client that is gone the daemon believes nothing any more, and it
// writes nothing where the next one may look.
func TestLeftAlone(t *testing.T) {
	h, m := newPair(t, smallSpec(), nil)
	m.r.SendTail().Store(2)
	if h.Posted() != 2 {
		t.Fatal("what is posted is not seen: the test looks at the wrong thing")
	}
	h.Leave()
	h.Leave() // again
	if got := h.Posted(); got != 0 {
		t.Errorf("%d descriptors are posted by nobody", got)
	}
	if h.CloseWord(unix.ECONNRESET); m.r.Closed().Load() != 0 {
		t.Error("somebody who is gone is told why")
	}
	var p Post
	if ok, err := h.Next(&p); ok || err != nil {
		t.Errorf("a descriptor of nobody: %+v, %v", p, err)
	}
}

// TestWalkLengths: where datagrams of one body end, of one length and of their own, and
// that none reaches behind the body whatever its length says.
func TestWalkLengths(t *testing.T) {
	table := func(body int, l ...uint32) []byte {
		var b []byte
		for _, n := range l {
			b = append(b, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
		}
		return append(b, make([]byte, body)...)
	}
	for _, c := range []struct {
		what string
		kind int
		body []byte
		n    int
		want []int
	}{
		{"one", KindEach, make([]byte, 7), 1, []int{7}},
		{"none has bytes", KindEach, nil, 3, []int{0, 0, 0}},
		{"three alike", KindEach, make([]byte, 12), 3, []int{4, 4, 4}},
		{"a rest that is nobody's", KindEach, make([]byte, 14), 3, []int{4, 4, 4}},
		{"of their own", KindTable, table(6, 1, 0, 5), 3, []int{1, 0, 5}},
		{"of every byte of a length", KindTable, table(0x1010101, 0x1010101), 1, []int{0x1010101}},
		{"longer than the body", KindTable, table(6, 4, 5, 1), 3, []int{4, 2, 0}},
		{"longer than anything", KindTable, table(6, 1<<32-1, 1), 2, []int{6, 0}},
	} {
		l, rest := Walk(MakeWord(c.kind, len(c.body), c.n), c.body)
		for i, want := range c.want {
			if got := l.Next(len(rest)); got != want {
				t.Errorf("%s: datagram %d has %d bytes, want %d", c.what, i, got, want)
			}
			rest = rest[want:]
		}
		if l.Left() != 0 {
			t.Errorf("%s: %d are left", c.what, l.Left())
		}
	}
}
