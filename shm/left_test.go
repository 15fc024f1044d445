package shm

import (
	"bytes"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/wire"
)

// TestLeftAlone: of a client that is gone the daemon believes nothing any more, and it
// writes nothing where the next one may look.
func TestLeftAlone(t *testing.T) {
	h, m := newPair(t, smallSpec(), nil)
	if _, ok := h.PlaceCopy(testDst, wire.One([]byte("unread")), NoLane, 0); !ok {
		t.Fatal("not placed")
	}
	unread := func() (n int) {
		h.EachUnread(func(netip.AddrPort, int) bool { n++; return true })
		return n
	}
	m.r.SendTail().Store(2)
	m.r.ReleaseTail().Store(1)
	if h.Posted() != 2 || unread() != 1 || !h.HasPosts() || !h.HasReleases() || !h.HasRoom() {
		t.Fatal("what the client did is not seen: the test looks at the wrong thing")
	}
	h.Leave()
	h.Leave() // again
	was := bytes.Clone(h.r.mem)
	var p Post
	if ok, err := h.Next(&p); ok || err != nil {
		t.Errorf("a descriptor of nobody: %+v, %v", p, err)
	}
	if _, cost, n, err := h.Releases(); n != 0 || cost != 0 || err != nil {
		t.Errorf("nobody released %d datagrams, %v", n, err)
	}
	if _, _, ok := h.FlowEntry(0); ok {
		t.Error("nobody opened a flow")
	}
	if h.Posted() != 0 || unread() != 0 || h.HasPosts() || h.HasReleases() || h.HasRoom() || h.Publish() {
		t.Errorf("posted %d, unread %d, %v, %v, %v", h.Posted(), unread(), h.HasPosts(), h.HasReleases(), h.HasRoom())
	}
	h.SetFlow(0, 1, FlowClear, 0)
	h.CloseWord(unix.ECONNRESET)
	if !h.Sleep() {
		t.Error("nobody keeps the daemon awake")
	}
	h.Wake()
	if !bytes.Equal(h.r.mem, was) {
		t.Error("something was written for nobody")
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
