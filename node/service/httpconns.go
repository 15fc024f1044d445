package service

import (
	"container/list"
	"net"
	"net/http"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	webpage "github.com/rdsd/rdsd/node/page"
)

// connTable bounds the connections of the page. Where there are too many, whoever has most
// of them makes room, so that one user's flood costs no other a connection: an
// administrator's monitor is answered beside it.
type connTable struct {
	most   int
	source func(net.Conn) string // whose a connection is

	mu sync.Mutex
	at map[net.Conn]place     // guarded by mu
	of map[string]*connsOfOne // guarded by mu; without empty ones
}

// place is where a connection stands.
type place struct {
	of *connsOfOne
	in *list.List // a list of it
	e  *list.Element
}

// connsOfOne are those of a source, oldest first: quiet ones have asked for nothing.
type connsOfOne struct {
	source      string
	quiet, loud list.List // of net.Conn
}

func (o *connsOfOne) len() int { return o.quiet.Len() + o.loud.Len() }

func newConnTable(most int, source func(net.Conn) string) *connTable {
	return &connTable{most: most, source: source, at: map[net.Conn]place{}, of: map[string]*connsOfOne{}}
}

// changed is http.Server.ConnState. Only who comes costs another its place: a state
// that changes adds nobody.
func (t *connTable) changed(c net.Conn, s http.ConnState) {
	source := ""
	if s == http.StateNew {
		source = t.source(c) // without the lock: the kernel is asked
	}
	t.mu.Lock()
	if was, ok := t.at[c]; ok {
		source = was.of.source
		t.remove(c)
	}
	var out net.Conn
	if s == http.StateNew {
		out = t.makeRoom()
	}
	if s == http.StateNew || s == http.StateIdle || s == http.StateActive {
		t.add(c, source, s)
	}
	t.mu.Unlock()
	if out != nil {
		out.Close() // its own goroutine reports that
	}
}

// sourceOf tells whose a connection is.
func (t *connTable) sourceOf(c net.Conn) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p, ok := t.at[c]; ok {
		return p.of.source
	}
	return ""
}

func (t *connTable) add(c net.Conn, source string, s http.ConnState) {
	o := t.of[source]
	if o == nil {
		o = &connsOfOne{source: source}
		t.of[source] = o
	}
	l := &o.quiet
	if s == http.StateActive {
		l = &o.loud
	}
	t.at[c] = place{o, l, l.PushBack(c)}
}

func (t *connTable) remove(c net.Conn) {
	p, ok := t.at[c]
	if !ok {
		return
	}
	delete(t.at, c)
	p.in.Remove(p.e)
	if p.of.len() == 0 {
		delete(t.of, p.of.source)
	}
}

// makeRoom takes the connection off the lists that goes for one more; nil: there is room.
// Whoever has asked for something and was not read yet is not silent: it is new, and in
// a flood of others its goroutine has had no turn.
func (t *connTable) makeRoom() (out net.Conn) {
	if len(t.at) < t.most {
		return nil
	}
	var o *connsOfOne
	for _, x := range t.of {
		if o == nil || x.len() > o.len() || x.len() == o.len() && x.source < o.source {
			o = x
		}
	}
	e := o.quiet.Front()
	for n := 0; e != nil && n < unreadLook && hasUnread(e.Value.(net.Conn)); n++ {
		e = e.Next()
	}
	if e == nil {
		e = o.quiet.Front()
	}
	if e == nil {
		e = o.loud.Front()
	}
	out = e.Value.(net.Conn)
	t.remove(out)
	return out
}

// unreadLook bounds the connections that are looked at for one that is silent.
const unreadLook = 32

// hasUnread reports whether something has come on a connection and was not read.
func hasUnread(c net.Conn) bool {
	s, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	n := 0
	if raw, err := s.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCINQ) }) // closed: nothing
	}
	return n > 0
}

// sourceOf tells whose a connection to the page is: a user of this machine, as the kernel
// knows, or an address. Connections whose other end is gone already are nobody's.
func sourceOf(c net.Conn) string {
	id, err := webpage.Identify(c)
	switch {
	case err != nil:
		return ""
	case id.Remote:
		host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
		return host
	}
	return "uid " + strconv.FormatUint(uint64(id.UID), 10)
}
