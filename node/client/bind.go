package client

import (
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/wire"
)

const (
	// sendWindowBytes and sendWindowBatches are what a client may have under way
	// in batches without an answer: enough to keep the daemon busy, and little
	// enough to be held for every socket.
	sendWindowBytes   = 2 << 20
	sendWindowBatches = 64
	// sendCreditDatagrams is how many datagrams, of a quarter of sendWindowBytes and of its
	// send buffer, a client may accept itself before they are here. What of them waits here
	// is in the window like all that waits, and is charged to its user when it comes.
	sendCreditDatagrams = 4096

	// plainSocketBytes and ringSocketBytes are what a socket costs the daemon that
	// has nothing under way (measured by internal/memtest): its part of the engine,
	// goroutines or the ends of its rings, and pages of its region and the ledger.
	plainSocketBytes = 32 << 10
	ringSocketBytes  = 64 << 10

	maxLabelBytes = 64
	maxCredit     = 1 << 40
)

// bind answers the first message of a stream.
func (s *sockStream) bind(m *rdsdv1.Bind) error {
	opt, port, err := s.prepare(m, plainSocketBytes)
	if err != nil {
		return err
	}
	opt.Data = s
	sock, got, err := s.bindEngine(port, opt, nil)
	if err != nil {
		s.front.sockets.remove(s)
		return err
	}
	s.sock = sock
	out := &rdsdv1.ServerMessage{}
	out.SetBound(s.bound(sock, got))
	if err := s.stream.SendMsg(out); err != nil {
		s.close()
		return err
	}
	return nil
}

// prepare checks what a Bind asks for and counts the socket. An error leaves
// nothing behind; otherwise sockets.remove must follow some time.
func (s *sockStream) prepare(m *rdsdv1.Bind, size int64) (opt rds.SocketOptions, port uint16, err error) {
	local, err := Endpoint("bind.local", m.GetLocal())
	if err != nil {
		return opt, 0, err
	}
	if s.eng, err = s.front.engineFor(local.Addr()); err != nil {
		return opt, 0, err
	}
	r := &s.front.deps.Config.RDS
	switch {
	case m.GetSendBufferBytes() > uint64(r.SendBufferMax):
		err = rdserr.With(rdserr.ErrInvalid, "bind.send_buffer_bytes is %d; at most %d (rds.send_buffer_max_bytes)", m.GetSendBufferBytes(), uint64(r.SendBufferMax))
	case m.GetRecvBufferBytes() > uint64(r.RecvBufferMax):
		err = rdserr.With(rdserr.ErrInvalid, "bind.recv_buffer_bytes is %d; at most %d (rds.recv_buffer_max_bytes)", m.GetRecvBufferBytes(), uint64(r.RecvBufferMax))
	case len(m.GetLabel()) > maxLabelBytes:
		err = rdserr.With(rdserr.ErrInvalid, "bind.label has %d bytes; at most %d", len(m.GetLabel()), maxLabelBytes)
	case !utf8.ValidString(m.GetLabel()):
		err = rdserr.With(rdserr.ErrInvalid, "bind.label is not UTF-8")
	default:
		err = s.front.deps.Conf().MayBind(s.id, local.Port())
	}
	if err == nil {
		err = s.front.sockets.reserve(s, size)
	}
	if err != nil {
		return opt, 0, err
	}
	s.creditN = int64(m.GetInitialCreditDatagrams())
	s.creditB = int64(min(m.GetInitialCreditBytes(), maxCredit))
	return rds.SocketOptions{
		Account:     s.memory,
		SndBufBytes: int(m.GetSendBufferBytes()),
		RcvBufBytes: int(m.GetRecvBufferBytes()),
		UID:         s.id.UID,
		PID:         uint32(max(s.id.PID, 0)),
		Label:       m.GetLabel(),
	}, local.Port(), nil
}

// bound is the answer to a Bind.
func (s *sockStream) bound(sock *rds.Socket, opt rds.SocketOptions) *rdsdv1.Bound {
	b := &rdsdv1.Bound{}
	b.SetLocal(EndpointPB(sock.Addr()))
	b.SetSendBufferBytes(uint64(opt.SndBufBytes))
	b.SetRecvBufferBytes(uint64(opt.RcvBufBytes))
	b.SetMaxDatagramBytes(uint64(min(opt.SndBufBytes, wire.MaxDatagram)))
	b.SetSendWindowBytes(sendWindowBytes)
	b.SetSendWindowBatches(sendWindowBatches)
	b.SetSendCreditBytes(uint64(min(opt.SndBufBytes, sendWindowBytes/4)))
	b.SetSendCreditDatagrams(sendCreditDatagrams)
	b.SetDaemonInstance(s.front.deps.Instance)
	b.SetDaemonVersion(base.Version())
	return b
}

// bindEngine binds a port; 0 is a free one that this client may have. ready, when
// not nil, is called with the lock still held, before anything can arrive.
func (s *sockStream) bindEngine(port uint16, o rds.SocketOptions, ready func(*rds.Socket)) (sock *rds.Socket, got rds.SocketOptions, err error) {
	if port == 0 {
		// The engine knows nothing of grants: a random port may be somebody's.
		sock, err = datagram.BindFree(s.eng, s.front.deps.Conf().Bindable(s.id), o, ready)
		if err == nil && sock == nil {
			err = rdserr.With(rdserr.ErrAddrInUse, "no port that uid %d may bind is free", s.id.UID)
		}
	} else {
		e, _ := s.eng.Lock()
		if sock, err = e.Bind(port, o); err == nil && ready != nil {
			ready(sock)
		}
		s.eng.Unlock() // never deferred: what a panic leaves is nothing to carry out
	}
	if err != nil {
		return nil, o, err
	}
	return sock, *sock.Options(), nil
}

// engineFor finds the engine of a local address.
func (f *Front) engineFor(a netip.Addr) (datagram.Engine, error) {
	if eng := f.deps.Engine(a); eng != nil {
		return eng, nil
	}
	have := make([]string, len(f.deps.Config.RDS.Addresses))
	for i, l := range f.deps.Config.RDS.Addresses {
		have[i] = l.String()
	}
	if a.IsUnspecified() || a.IsMulticast() {
		return nil, rdserr.With(rdserr.ErrInvalid, "%v is not the address of one node; bind one of %s", a, strings.Join(have, ", "))
	}
	return nil, rdserr.With(rdserr.ErrAddrNotAvail, "%v is not an address of this node; bind one of %s", a, strings.Join(have, ", "))
}

// endpoint checks an Endpoint of a client; field is its name in the message.
func Endpoint(field string, e *rdsdv1.Endpoint) (netip.AddrPort, error) {
	raw := rawEndpoint{port: e.GetPort()}
	raw.setAddress(e.GetAddress())
	if p := raw.problem(field); p != "" {
		return netip.AddrPort{}, rdserr.With(rdserr.ErrInvalid, "%s", p)
	}
	return netip.AddrPortFrom(raw.addr, uint16(raw.port)), nil
}

func EndpointPB(a netip.AddrPort) *rdsdv1.Endpoint {
	e := &rdsdv1.Endpoint{}
	e.SetAddress(a.Addr().AsSlice())
	e.SetPort(uint32(a.Port()))
	return e
}

// socketTable counts the sockets of each user and knows their streams, so
// that the daemon can end them.
type socketTable struct {
	max, maxPerUID int
	memory         *quota.Node

	mu      sync.Mutex
	closed  atomic.Pointer[error] // stored with mu held; why no socket is opened any more, nil while some are
	streams map[*sockStream]struct{}
	byUser  map[uint32]int // guarded by mu
	refused uint64         // guarded by mu
}

func newSocketTable(max, maxPerUID int, memory *quota.Node) *socketTable {
	return &socketTable{max: max, maxPerUID: maxPerUID, memory: memory, streams: map[*sockStream]struct{}{}, byUser: map[uint32]int{}}
}

// reserve counts a socket that takes size bytes, datagrams apart, of its user's
// memory.
func (t *socketTable) reserve(s *sockStream, size int64) error {
	account := t.memory.Account(quota.User(s.id.UID))
	err := account.Take(quota.Sockets, size)
	if err == nil {
		if err = t.enter(s); err != nil {
			account.Give(quota.Sockets, size)
		}
	}
	if err != nil {
		account.Close()
		return err
	}
	s.memory, s.size = account, size
	return nil
}

func (t *socketTable) enter(s *sockStream) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var err error
	switch {
	case t.closed.Load() != nil:
		return t.draining()
	case len(t.streams) >= t.max:
		err = rdserr.With(rdserr.ErrTooMany, "limits.max_sockets (%d) sockets are open", t.max)
	case t.byUser[s.id.UID] >= t.maxPerUID:
		err = rdserr.With(rdserr.ErrTooMany, "uid %d has limits.max_sockets_per_uid (%d) sockets open", s.id.UID, t.maxPerUID)
	default:
		t.streams[s] = struct{}{}
		t.byUser[s.id.UID]++
		return nil
	}
	t.refused++
	return err
}

func (t *socketTable) remove(s *sockStream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.streams[s]; !ok {
		return
	}
	delete(t.streams, s)
	s.memory.Give(quota.Sockets, s.size)
	s.memory.Close()
	if t.byUser[s.id.UID]--; t.byUser[s.id.UID] == 0 {
		delete(t.byUser, s.id.UID)
	}
}

func (t *socketTable) budget() base.Budget {
	t.mu.Lock()
	defer t.mu.Unlock()
	return base.Budget{Name: "sockets", Used: uint64(len(t.streams)), Limit: uint64(t.max), Refused: t.refused}
}

// refuse makes every later reserve fail with err.
func (t *socketTable) refuse(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed.Store(&err)
}

// draining is why nothing new is taken, nil while the node serves.
func (t *socketTable) draining() error {
	if why := t.closed.Load(); why != nil {
		return *why
	}
	return nil
}

// finishAll ends every stream.
func (t *socketTable) finishAll(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for s := range t.streams {
		s.finish(err)
	}
}

func (t *socketTable) setMaxPerUID(most int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.maxPerUID = most
}
