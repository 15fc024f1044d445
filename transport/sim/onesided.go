package sim

import (
	"errors"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/rdsd/rdsd/transport"
)

// OneSided makes one-sided links between hosts: tagged frames, as over TCP,
// through connections of the simulated kind, so that cuts, resets and small
// pieces fall inside of writes. Everything happens in calls of Clock.Step, so
// that connecting is asynchronous: otherwise this is a
// transport.OneSidedProvider (a few lines of the package's tests make it one).
//
// A host has one listener. Keys are drawn from the world's randomness.
type OneSided struct {
	h   *Host
	dev Device
}

// NewOneSided makes the links of h.
func NewOneSided(h *Host) *OneSided { return NewDevice(h, Device{}) }

// Dial connects from port src and shows private to the other end. done is
// called once, as Host.Dial does, with the link and the answer, or an error.
func (p *OneSided) Dial(src uint16, remote netip.Addr, timeout time.Duration, d transport.Domain, attr transport.LinkAttr, private []byte, done func(l transport.OneSided, rsp []byte, err error)) {
	hello, err := transport.AppendHandshake(nil, transport.TagConnect, private)
	dom, derr := domainOf(d)
	if derr != nil {
		err = derr
	}
	n := p.h.n
	if err != nil {
		// Not from within the call: the caller does not expect to be called back by Dial.
		n.After(0, func() { done(nil, nil, err) })
		return
	}
	deadline := n.now + timeout
	p.h.Dial(src, remote, timeout, func(e *End, err error) {
		if err != nil {
			done(nil, nil, err)
			return
		}
		local, there := netip.AddrPortFrom(p.h.Addr, src), netip.AddrPortFrom(remote, 0)
		e.Write([][]byte{hello})
		shake(e, deadline, func(t transport.Tag, rsp []byte, err error) {
			if err == nil && t.Kind == transport.TagReject {
				err = &transport.Refused{Remote: there, Private: rsp}
			}
			if err != nil {
				e.Close()
				done(nil, nil, err)
				return
			}
			done(newLink(e, dom, local, there), rsp, nil)
		})
	})
}

// Listen calls accept for each request to connect.
func (p *OneSided) Listen(accept func(transport.ConnRequest)) {
	h := p.h
	h.Accept = func(e *End, from netip.AddrPort) {
		shake(e, h.n.now+5*time.Second, func(t transport.Tag, private []byte, err error) {
			if err != nil || t.Kind != transport.TagConnect {
				e.Close()
				return
			}
			accept(&request{e: e, from: from, private: private})
		})
	}
}

// shake reads one frame of a handshake and calls done with it, or with an error. No byte
// behind it is read.
func shake(e *End, deadline time.Duration, done func(transport.Tag, []byte, error)) {
	var b []byte
	over, epoch := false, e.h.epoch
	end := func(t transport.Tag, private []byte, err error) {
		if !over && e.h.epoch == epoch {
			over, e.Readable = true, nil
			done(t, private, err)
		}
	}
	e.Readable = func() {
		var t transport.Tag
		// No byte beyond the handshake is read: those are for the link.
		b = e.Read(b, transport.TagLen-min(len(b), transport.TagLen))
		if len(b) >= transport.TagLen {
			if err := t.Parse(b[:transport.TagLen], 0); err != nil || t.Kind < transport.TagConnect {
				end(t, nil, errors.Join(errors.New("sim: no handshake"), err))
				return
			}
			b = e.Read(b, transport.TagLen+int(t.Len)-len(b))
			if len(b) == transport.TagLen+int(t.Len) {
				end(t, b[transport.TagLen:], nil)
				return
			}
		}
		if gone, err := e.Ended(); gone && e.Buffered() == 0 {
			if err == nil {
				err = io.EOF
			}
			end(t, nil, err)
		}
	}
	e.n.At(deadline, func() { end(transport.Tag{}, nil, ErrTimeout) })
	e.Readable() // bytes that came before
}

type request struct {
	e        *End
	from     netip.AddrPort
	private  []byte
	answered bool
}

func (q *request) Private() []byte            { return q.private }
func (q *request) LocalAddr() netip.AddrPort  { return netip.AddrPortFrom(q.e.h.Addr, 0) }
func (q *request) RemoteAddr() netip.AddrPort { return q.from }

func (q *request) Accept(d transport.Domain, attr transport.LinkAttr, private []byte) (transport.OneSided, error) {
	dom, err := domainOf(d)
	if err != nil {
		return nil, err
	}
	b, err := transport.AppendHandshake(nil, transport.TagAccept, private)
	if err != nil {
		return nil, err
	}
	if q.answered {
		return nil, errors.New("sim: the request to connect has been answered before")
	}
	q.answered = true
	if n, err := q.e.Write([][]byte{b}); err != nil || n < len(b) {
		q.e.Close()
		return nil, errors.Join(ErrClosed, err)
	}
	return newLink(q.e, dom, q.LocalAddr(), q.from), nil
}

func (q *request) Reject(private []byte) {
	if q.answered {
		return
	}
	q.answered = true
	b, err := transport.AppendHandshake(nil, transport.TagReject, private[:min(len(private), transport.MaxReject)])
	if err == nil {
		q.e.Write([][]byte{b})
	}
	q.e.Close()
}

// deferred is when a link is looked at again that is not to be read for a moment.
const deferred = time.Millisecond

// link is a one-sided link over a connection.
type link struct {
	e             *End
	local, remote netip.AddrPort
	h             transport.OneSidedHandler
	d             *domain
	sent          transport.SentCount
	in            transport.TagReader
	out           transport.TagQueue
	full          bool // the connection took no more, for now
	dead          bool // it has failed, and is about to end
	ended         bool
	err           error
	buf           []byte
}

func newLink(e *End, d *domain, local, remote netip.AddrPort) *link {
	l := &link{e: e, d: d, local: local, remote: remote, out: transport.NewTagQueue(1)}
	l.in = transport.NewTagReader(d.Regions, 1, &l.sent)
	d.links = append(d.links, l)
	e.Writable = l.writable
	return l
}

func (l *link) LocalAddr() netip.AddrPort  { return l.local }
func (l *link) RemoteAddr() netip.AddrPort { return l.remote }

// Die does to the link what the end of the process would: its memory is gone, and no
// handler is called.
func (l *link) Die() {
	if l.ended {
		return
	}
	l.ended = true
	l.leave()
	l.out.Drop()
	if l.h != nil {
		l.in.Close()
	}
}

// leave takes the link out of its domain.
func (l *link) leave() {
	l.d.links = slices.DeleteFunc(l.d.links, func(o *link) bool { return o == l })
}

// Idle reports whether everything that was posted is written, or will not be.
func (l *link) Idle() bool { return l.ended || l.out.Ops() == 0 }

// End is the connection below, for faults.
func (l *link) End() *End { return l.e }

func (l *link) Start(h transport.OneSidedHandler, recvBytes int) {
	if l.h != nil {
		return
	}
	if l.h = h; l.d.p.dev != (Device{}) {
		l.h = &handler{OneSidedHandler: h, l: l, dev: &l.d.p.dev}
	}
	if l.ended {
		l.later(func() { h.Closed(l.err) })
		return
	}
	l.in.Start(l.h)
	l.in.Expect(recvBytes)
	l.e.Readable = l.readable
	l.later(l.readable) // bytes that came before
}

// later runs f in an event of its own, if the program still runs by then.
func (l *link) later(f func()) { l.after(0, f) }

func (l *link) Post(op *transport.Op) {
	if l.dead || l.ended {
		return
	}
	if err := l.out.Post(op); err != nil {
		l.fail(err)
		return
	}
	l.sent.Posted()
}

func (l *link) Grant(p []byte, at uint64) (key uint32, addr uint64) { return l.d.Grant(p, at) }

func (l *link) fail(err error) {
	l.dead = true
	l.later(func() { l.end(err) })
}

func (l *link) Flush() {
	for !l.dead && !l.ended && !l.full {
		b := l.out.Next()
		if b == nil {
			return
		}
		n, err := l.e.Write(b.Pieces)
		switch {
		case err != nil:
			l.fail(err)
		case b.Wrote(n):
			ops := b.Ops()
			l.out.Done()
			if l.sent.Wrote(ops) {
				l.later(l.tellSent)
			}
		default:
			l.full = true
		}
	}
}

func (l *link) tellSent() {
	if !l.ended {
		l.in.TellSent()
	}
}

func (l *link) writable() {
	l.full = false
	l.Flush()
}

func (l *link) readable() {
	if l.ended {
		return
	}
	if l.in.Deferred() {
		l.e.n.After(deferred, func() {
			if l.e.Readable != nil {
				l.e.Readable()
			}
		})
		return
	}
	err := l.read()
	l.in.EndTurn()
	if err != nil {
		l.end(err)
	}
}

func (l *link) read() error {
	for l.e.Buffered() > 0 {
		want, err := l.in.Want()
		if err != nil {
			return err
		}
		if want != nil { // into its place
			if err := l.in.Filled(len(l.e.Read(want[:0], len(want)))); err != nil {
				return err
			}
			continue
		}
		l.buf = l.e.Read(l.buf[:0], l.in.Ahead(64<<10))
		if err := l.in.Feed(l.buf); err != nil {
			return err
		}
	}
	// The end counts behind every byte that came before it.
	gone, err := l.e.Ended()
	switch {
	case !gone:
		return nil
	case err != nil:
		return err
	case l.in.Partial():
		return io.ErrUnexpectedEOF
	}
	return io.EOF
}

func (l *link) Close() {
	if l.h == nil {
		l.end(ErrClosed)
	} else {
		l.later(func() { l.end(ErrClosed) })
	}
}

func (l *link) end(err error) {
	if l.ended {
		return
	}
	l.ended, l.err = true, err
	l.leave()
	l.e.Writable = nil
	l.e.Close()
	l.out.Drop()
	if l.h != nil {
		l.in.Close()
		l.h.Closed(err)
	}
}
