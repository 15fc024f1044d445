package soft

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/roce"
	"github.com/rdsd/rdsd/roce/cm"
	"github.com/rdsd/rdsd/transport/ib"
)

// Memory returns memory outside of Go's heap. Any other would do as well.
func (d *Device) Memory(n int) (b []byte, release func(), err error) {
	if n == 0 {
		return nil, func() {}, nil
	}
	return d.m.Memory(n)
}

// mapped is memory whose pages are given back by release, in a goroutine: links end on reactors,
// and the peer's offer decides how many pages there are.
func (d *Device) mapped(n int) (b []byte, release func(), err error) {
	b, err = unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, nil, os.NewSyscallError("mmap", err)
	}
	return b, func() {
		go func() { // ends with the call
			defer d.cfg.Guard.Recover(guard.Link, nil)
			_ = unix.Munmap(b)
		}()
	}, nil
}

// Adopt does nothing: packets are made of any memory.
func (d *Device) Adopt([]byte) (release func(), err error) { return func() {}, nil }

// domain is a protection domain: keys of its own, which no queue pair of another one has a
// use for.
type domain struct {
	d   *Device
	mem *roce.Memory // guarded by d.mu
}

// NewDomain makes a protection domain. withdrawn is not called.
func (d *Device) NewDomain(func(key uint32, w ib.Withdrawal)) (ib.Domain, error) {
	o := &domain{d, roce.NewMemory(d.m.random())}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.domains[o] = struct{}{}
	return o, nil
}

// Expose gives peers rights to b.
func (o *domain) Expose(b []byte, iova uint64, r ib.Rights) (key uint32, err error) {
	var rights roce.Rights
	if r&ib.RemoteWrite != 0 {
		rights |= roce.RemoteWrite
	}
	if r&ib.PeerRevokes != 0 {
		rights |= roce.PeerRevokes
	}
	o.d.mu.Lock()
	defer o.d.mu.Unlock()
	return o.mem.Expose(b, iova, rights, roce.AnyQP)
}

// Withdraw ends key.
func (o *domain) Withdraw(key uint32) ib.Withdrawal {
	o.d.mu.Lock()
	defer o.d.mu.Unlock()
	filled, idle := o.mem.Take(key)
	w := ib.Withdrawal{State: ib.Idle, Filled: filled, Known: true}
	if !idle {
		w.State = ib.Busy
	}
	return w
}

// Guard has f called before bytes of a peer are placed, with the device's lock held.
func (o *domain) Guard(f func(p []byte) error) {
	o.d.mu.Lock()
	defer o.d.mu.Unlock()
	o.mem.Guard(func(p []byte) error {
		err := f(p)
		if errors.Is(err, ib.ErrNotNow) {
			return roce.ErrNotNow
		}
		return err
	})
}

// Close ends all keys.
func (o *domain) Close() {
	o.d.mu.Lock()
	defer o.d.mu.Unlock()
	o.mem.Close()
	delete(o.d.domains, o)
}

// queuePair is one end of a connection. All but d, h and rq is guarded by d.mu.
type queuePair struct {
	d  *Device
	h  ib.Handler
	rq *roce.QP

	conn   *cm.Conn // nil: before it is connected, and when q is closed or nothing is left of it
	dial   *dialing // under way
	mtu    int      // of the path; 0 before it is connected
	first  roce.PSN // with which the peer begins
	used   bool     // Dial or Accept was called
	queued bool     // Ready is among the events
	told   bool     // Ended is, or was
	over   bool     // Disconnect was called
	closed bool
}

// qpBytes is what NewQP takes.
func qpBytes(cfg ib.QPConfig) int {
	return int(unsafe.Sizeof(queuePair{})) + roce.QPBytes(roce.QPConfig{Sends: max(cfg.Sends, 1), Recvs: max(cfg.Recvs, 1)})
}

// NewQP makes a queue pair, in which receives can be posted.
func (o *domain) NewQP(cfg ib.QPConfig, h ib.Handler) (ib.QP, error) {
	most := ib.QPConfig{Sends: roce.MaxQueue, Recvs: roce.MaxQueue}
	if cfg.Sends > most.Sends || cfg.Recvs > most.Recvs {
		return nil, &ib.DepthError{Asked: cfg, Max: most}
	}
	d := o.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, ErrClosed
	}
	rq, err := d.dev.NewQP(roce.QPConfig{
		Sends: max(cfg.Sends, 1), Recvs: max(cfg.Recvs, 1), RNR: roce.RNR(rnrDelay), Memory: o.mem,
	})
	if err == nil {
		err = rq.Init()
	}
	if err != nil {
		return nil, &ib.DepthError{Asked: cfg, Max: most, Err: err}
	}
	q := &queuePair{d: d, h: h, rq: rq}
	d.qps[rq] = q
	return q, nil
}

// Number is the queue pair's.
func (q *queuePair) Number() uint32 { return q.rq.Number() }

var opOf = [...]roce.Op{
	ib.Send: roce.OpSend, ib.SendImm: roce.OpSendImm, ib.SendInval: roce.OpSendInval,
	ib.Write: roce.OpWrite, ib.WriteImm: roce.OpWriteImm,
}

// Post adds work, and has it sent.
func (q *queuePair) Post(wr []ib.WR) (n int, err error) {
	d := q.d
	d.mu.Lock()
	for n < len(wr) && err == nil {
		if err = q.post(&wr[n]); err == nil {
			n++
		}
	}
	d.leave(q.now())
	d.mu.Unlock()
	if n > 0 {
		d.doorbell()
	}
	if errors.Is(err, roce.ErrFull) {
		err = nil
	}
	return n, err
}

// now is the time of a call.
func (q *queuePair) now() time.Duration {
	if q.d.r.OnThread() {
		return q.d.r.Now()
	}
	return q.d.m.Clock()
}

func (q *queuePair) post(wr *ib.WR) error {
	if int(wr.Op) >= len(opOf) || opOf[wr.Op] == 0 {
		return fmt.Errorf("soft: %v is no work that can be posted", wr.Op)
	}
	w := roce.Work{
		ID: wr.ID, Op: opOf[wr.Op], Imm: wr.Imm, Piece: wr.Piece, Addr: wr.Addr, Key: wr.Key,
		Solicited: wr.Flags&ib.Solicited != 0, Quiet: wr.Flags&ib.Signal == 0,
	}
	if wr.Op == ib.SendInval {
		w.Key, w.Inval = 0, wr.Key
	}
	return q.rq.Post(w)
}

// Receive adds slots.
func (q *queuePair) Receive(s []ib.Slot) (n int, err error) {
	d := q.d
	d.mu.Lock()
	defer d.mu.Unlock()
	for n < len(s) && err == nil {
		if err = q.rq.PostRecv(roce.Recv{ID: s[n].ID, Data: s[n].Data}); err == nil {
			n++
		}
	}
	d.leave(q.now())
	if errors.Is(err, roce.ErrFull) {
		err = nil
	}
	return n, err
}

// Poll takes completions.
func (q *queuePair) Poll(c []ib.Completion) (n int) {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	for n < len(c) {
		rc, ok := q.rq.Poll()
		if !ok {
			break
		}
		fill(&c[n], &rc)
		n++
	}
	return n
}

var opFrom = [...]ib.Op{
	roce.OpSend: ib.Send, roce.OpSendImm: ib.SendImm, roce.OpSendInval: ib.SendInval,
	roce.OpWrite: ib.Write, roce.OpWriteImm: ib.WriteImm, roce.OpRead: 0,
	roce.OpRecv: ib.Recv, roce.OpRecvWrite: ib.RecvWriteImm,
}

var statusFrom = [...]ib.Status{
	roce.OK: ib.OK, roce.Flushed: ib.Flushed, roce.LocalLength: ib.LocalLength, roce.RemoteInvalid: ib.RemoteInvalid,
	roce.RemoteAccess: ib.RemoteAccess, roce.RemoteOperation: ib.RemoteOperation,
	roce.RetryExceeded: ib.RetryExceeded, roce.RNRExceeded: ib.RNRExceeded,
}

func statusOf(s roce.Status) ib.Status {
	if int(s) < len(statusFrom) {
		return statusFrom[s]
	}
	return ib.OtherFailure
}

func fill(c *ib.Completion, rc *roce.Completion) {
	*c = ib.Completion{ID: rc.ID, Op: opFrom[rc.Op], Status: statusOf(rc.Status), N: rc.N, Imm: rc.Imm, Key: rc.Key, Addr: rc.Addr, Filled: rc.Filled}
	if rc.HasImm {
		c.Has |= ib.HasImm
	}
	if rc.HasInval {
		c.Has |= ib.HasInval | ib.HasFilled
	}
	if rc.Op == roce.OpRecvWrite {
		c.Has |= ib.HasPlace
	}
}

// tell has the handler told that q has failed, once, unless its owner has ended it. mu is
// held.
func (q *queuePair) tell(why error) {
	if !q.told && !q.over && !q.closed {
		q.told = true
		(*env)(q.d).push(event{kind: evEnded, q: q, err: why})
	}
}

// end fails q for a reason of this side. mu is held.
func (q *queuePair) end(now time.Duration, why error) {
	q.rq.Fail()
	if q.conn != nil {
		q.conn.Disconnect(now)
	}
	if w := q.dial; w != nil {
		// What the peer may answer is of no use any more.
		w.finish(cmp.Or(why, error(ErrClosed)))
		w.c.Disconnect(now)
	}
	q.tell(why)
}

// Disconnect ends the connection.
func (q *queuePair) Disconnect() {
	d := q.d
	d.mu.Lock()
	now := q.now()
	q.over = true
	q.end(now, nil)
	d.leave(now)
	d.mu.Unlock()
	d.doorbell()
}

// Close frees q.
func (q *queuePair) Close() {
	d := q.d
	d.mu.Lock()
	q.closed = true
	q.over = true
	if q.conn != nil {
		// What is left of it outlasts its owner's memory, which nobody is charged for any more.
		q.conn.Owner, q.conn = nil, nil
	}
	q.free()
	d.mu.Unlock()
}

// free gives q back to the core, now or when the burst that refers to it was sent. mu is
// held.
func (q *queuePair) free() {
	if q.rq.Close() != nil {
		q.d.out.closing = append(q.d.out.closing, q)
		return
	}
	delete(q.d.qps, q.rq)
}
