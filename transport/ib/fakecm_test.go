package ib

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/rdsd/rdsd/transport"
)

// fakeListener is a port.
type fakeListener struct {
	v    *fakeVerbs
	addr netip.AddrPort
	ask  func(Asked)
}

func (l *fakeListener) Addr() netip.AddrPort { return l.addr }

func (l *fakeListener) Close() error {
	l.v.fab.mu.Lock()
	defer l.v.fab.mu.Unlock()
	delete(l.v.fab.ports, l.addr)
	return nil
}

func (v *fakeVerbs) Listen(local netip.AddrPort, ask func(Asked)) (transport.Listener, error) {
	v.fab.mu.Lock()
	defer v.fab.mu.Unlock()
	if v.Refuse != nil {
		return nil, v.Refuse
	}
	if local.Port() == 0 {
		v.fab.port++
		local = netip.AddrPortFrom(local.Addr(), v.fab.port)
	}
	l := &fakeListener{v: v, addr: local, ask: ask}
	v.fab.ports[local] = l
	return l, nil
}

// padded is private data as the wire has it.
func padded(p []byte, n int) []byte {
	return append(append([]byte(nil), p...), make([]byte, n-len(p))...)
}

func (v *fakeVerbs) Dial(ctx context.Context, local, remote netip.AddrPort, q QP, p Param) (Peer, error) {
	if err := ctx.Err(); err != nil {
		return Peer{}, err
	}
	v.fab.mu.Lock()
	l := v.fab.ports[remote]
	if local.Port() == 0 {
		v.fab.port++
		local = netip.AddrPortFrom(v.info.Addr, v.fab.port)
	}
	reject := v.RejectAll
	v.fab.mu.Unlock()
	switch {
	case reject != 0:
		return Peer{}, &Rejected{Remote: remote, Reason: reject, Private: padded(nil, transport.MaxReject)}
	case l == nil:
		return Peer{}, &Rejected{Remote: remote, Reason: 8}
	}
	q.(*fakeQP).param = p
	p.Private = padded(p.Private, transport.MaxConnect)
	a := &fakeAsked{l: l, q: q.(*fakeQP), p: p, local: remote, remote: local, answer: make(chan Param, 1), reject: make(chan []byte, 1)}
	l.v.r.Do(func() { l.ask(a) })
	select {
	case rsp := <-a.answer:
		if l.v.holdRTU == nil {
			l.v.r.Do(a.by.h.Established)
		} else {
			go func() { // ends when the test says so
				<-l.v.holdRTU
				l.v.r.Do(a.by.h.Established)
			}()
		}
		if v.dialled != nil {
			v.dialled(q.(*fakeQP))
		}
		return Peer{Local: local, Remote: remote, Param: rsp}, nil
	case private := <-a.reject:
		return Peer{}, &Rejected{Remote: remote, Reason: ReasonConsumer, Private: private}
	case <-ctx.Done():
		a.once.Do(func() {})
		return Peer{}, ctx.Err()
	}
}

type fakeAsked struct {
	l             *fakeListener
	q, by         *fakeQP
	p             Param
	local, remote netip.AddrPort
	fromPort      bool
	once          sync.Once
	answer        chan Param
	reject        chan []byte
}

func (a *fakeAsked) Param() Param               { return a.p }
func (a *fakeAsked) LocalAddr() netip.AddrPort  { return a.local }
func (a *fakeAsked) RemoteAddr() netip.AddrPort { return a.remote }

func (a *fakeAsked) FromPort() bool { return a.fromPort }

func (a *fakeAsked) Accept(q QP, p Param) error {
	err := errors.New("the peer is gone")
	a.once.Do(func() {
		a.l.v.fab.mu.Lock()
		defer a.l.v.fab.mu.Unlock()
		a.by = q.(*fakeQP)
		a.by.param = p
		a.q.peer, a.by.peer = a.by, a.q
		p.Private = padded(p.Private, transport.MaxAccept)
		a.answer <- p
		err = nil
	})
	return err
}

func (a *fakeAsked) Reject(private []byte) {
	a.once.Do(func() { a.reject <- padded(private, transport.MaxReject) })
}

func (a *fakeAsked) Forget() { a.once.Do(func() { a.reject <- []byte("forgotten") }) }
