package adversary

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/shm"
)

// Ring is a socket with rings, without any of the care a client takes. Mem is
// the client's part of the region, to be written anywhere; its fields follow docs/shm.md.
type Ring struct {
	*Packets
	Reg    *shm.Region
	Region int // descriptor of the client's part
	Daemon int // descriptor of the daemon's part
	Mem    []byte
	Bells  []int // the daemon's, then the client's, and what else came
	Local  netip.AddrPort

	s     *Stage
	sent  uint64 // send tail as published
	freed uint64 // release tail as published
	taken uint64 // receive head
}

// Packets is a connection to the control socket.
type Packets struct {
	*shm.Conn
}

// DialPackets connects to the control socket.
func (s *Stage) DialPackets() (*Packets, error) {
	c, err := shm.Dial(s.Ctx, s.Socket+shm.SocketSuffix)
	if err != nil {
		return nil, err
	}
	if end, ok := s.Ctx.Deadline(); ok {
		c.SetDeadline(end.Add(50 * time.Millisecond))
	}
	return &Packets{keep(s, c)}, nil
}

// Say sends a message of the protocol.
func (p *Packets) Say(m *rdsdv1.ClientMessage) error {
	b, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	return p.WriteMessage(b)
}

// Hear reads the next message and the descriptors that came with it.
func (p *Packets) Hear() (*rdsdv1.ServerMessage, []int, error) {
	b, fds, err := p.ReadMessage()
	if err != nil {
		return nil, nil, err
	}
	m := &rdsdv1.ServerMessage{}
	return m, fds, proto.Unmarshal(b, m)
}

// raw runs f with the connection's descriptor.
func (p *Packets) raw(f func(fd int)) {
	if rc, err := p.SyscallConn(); err == nil {
		rc.Control(func(fd uintptr) { f(int(fd)) })
	}
}

// endpoint is an address as the protocol has it.
func endpoint(a netip.AddrPort) *rdsdv1.Endpoint {
	e := &rdsdv1.Endpoint{}
	e.SetAddress(a.Addr().AsSlice())
	e.SetPort(uint32(a.Port()))
	return e
}

// bind is the message that asks for any port of the daemon, with buffers of
// size bytes (0: the daemon's default).
func (s *Stage) bind(port uint16, size int) *rdsdv1.Bind {
	b := &rdsdv1.Bind{}
	b.SetLocal(endpoint(netip.AddrPortFrom(s.Daemon, port)))
	b.SetSendBufferBytes(uint64(size))
	b.SetRecvBufferBytes(uint64(size))
	b.SetLabel("adversary")
	b.SetInitialCreditDatagrams(1 << 20)
	b.SetInitialCreditBytes(1 << 30)
	return b
}

func bindMessage(b *rdsdv1.Bind) *rdsdv1.ClientMessage {
	m := &rdsdv1.ClientMessage{}
	m.SetBind(b)
	return m
}

// errRefused says that the daemon refused a bind, as it may.
type errRefused struct{ errno int32 }

func (e errRefused) Error() string { return fmt.Sprintf("refused with errno %d", e.errno) }

// BindPackets makes a plain socket over the control socket.
func (s *Stage) BindPackets(port uint16, size int) (*Packets, netip.AddrPort, error) {
	p, err := s.DialPackets()
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	bound, _, err := s.bound(p, bindMessage(s.bind(port, size)))
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	return p, local(bound), nil
}

// ask says something and hears the answer.
func (p *Packets) ask(m *rdsdv1.ClientMessage) (*rdsdv1.ServerMessage, []int, error) {
	if err := p.Say(m); err != nil {
		return nil, nil, err
	}
	return p.Hear()
}

// bound says what is to be answered with Bound, and returns that.
func (s *Stage) bound(p *Packets, ask *rdsdv1.ClientMessage) (*rdsdv1.Bound, []int, error) {
	m, fds, err := p.ask(ask)
	if err != nil {
		return nil, nil, err
	}
	if !m.HasBound() {
		closeAll(fds)
		p.Close()
		return nil, nil, errRefused{m.GetClosing().GetErrno()}
	}
	return m.GetBound(), fds, nil
}

func local(b *rdsdv1.Bound) netip.AddrPort {
	a, _ := netip.AddrFromSlice(b.GetLocal().GetAddress())
	return netip.AddrPortFrom(a, uint16(b.GetLocal().GetPort()))
}

// BindRing makes a socket with rings; port 0 is any.
func (s *Stage) BindRing(port uint16, size int) (*Ring, error) {
	p, err := s.DialPackets()
	if err != nil {
		return nil, err
	}
	r, err := s.region(p, s.ringBind(port, size))
	if err != nil {
		return nil, err
	}
	return r, r.mapped()
}

// mapped says that the region is mapped, and learns what the socket is bound to.
func (r *Ring) mapped() error {
	m := &rdsdv1.ClientMessage{}
	m.SetMapped(&rdsdv1.RingMapped{})
	bound, _, err := r.s.bound(r.Packets, m)
	if err != nil {
		return err
	}
	r.Local = local(bound)
	return r.Reg.ReadHeader()
}

// ringBind is bind for a socket with rings.
func (s *Stage) ringBind(port uint16, size int) *rdsdv1.Bind {
	b := s.bind(port, size)
	w := &rdsdv1.RingWish{}
	w.SetVersion(shm.Version)
	w.SetOneDoorbell(s.IntN(2) == 0)
	b.SetRing(w)
	return b
}

// region binds with rings as far as the mapped region; the daemon waits for the news
// that it is mapped.
func (s *Stage) region(p *Packets, b *rdsdv1.Bind) (*Ring, error) {
	m, fds, err := p.ask(bindMessage(b))
	if err != nil {
		return nil, err
	}
	if !m.HasRegion() || len(fds) < 3 {
		closeAll(fds)
		p.Close()
		if m.HasClosing() {
			return nil, errRefused{m.GetClosing().GetErrno()}
		}
		return nil, fmt.Errorf("%d descriptors came with a region", len(fds))
	}
	s.After(func() { closeAll(fds) })
	bytes := m.GetRegion().GetRegionBytes()
	r := &Ring{Packets: p, Region: fds[0], Daemon: fds[1], Bells: fds[2:], s: s}
	if r.Reg, err = shm.Open(fds[0], fds[1], bytes); err != nil {
		return nil, err
	}
	keep(s, r.Reg)
	if r.Mem, err = unix.Mmap(fds[0], 0, int(r.Reg.DaemonOff), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE); err != nil {
		return nil, err
	}
	s.After(func() { unix.Munmap(r.Mem) })
	return r, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// Ring rings the daemon, whether it sleeps or not.
func (r *Ring) Ring() { shm.Ring(r.Bells[0]) }

// Flow writes an entry of the flow table.
func (r *Ring) Flow(i, gen uint32, dst netip.AddrPort) {
	r.Reg.PutFlow(i, &shm.FlowEntry{Dst: dst, Gen: gen})
}

// Post posts a descriptor, whatever stands in it and whether there is room or not.
func (r *Ring) Post(w shm.Word, d shm.SendDesc) {
	r.touch(d.Slot, uint64(w.Bytes()))
	if w.Kind() == shm.KindMixed {
		table := min(uint64(w.Count())*shm.LengthBytes, d.Slot)
		r.touch(d.Slot-table, table)
	}
	r.put(w, d)
}

// touch makes the pages of a body the client's own, as far as they are in the arena.
func (r *Ring) touch(slot, n uint64) {
	arena := r.Reg.SendArena()
	for at := slot &^ 4095; at < slot+n && at < uint64(len(arena)); at += 4096 {
		atomic.LoadUint32((*uint32)(unsafe.Pointer(&arena[at])))
	}
}

// put posts a descriptor whether its body has been touched or not.
func (r *Ring) put(w shm.Word, d shm.SendDesc) {
	r.Reg.PutSend(r.sent, w, &d)
	r.sent++
	r.Reg.SendTail().Store(r.sent)
}

// PostIf posts if the send ring has room.
func (r *Ring) PostIf(w shm.Word, d shm.SendDesc) bool {
	if r.sent-r.Reg.SendHead().Load() >= uint64(r.Reg.Sends) {
		return false
	}
	r.Post(w, d)
	return true
}

// Events reads all events there are and returns how many there were.
func (r *Ring) Events() int {
	head, tail := r.Reg.EventHead().Load(), r.Reg.EventTail().Load()
	r.Reg.EventHead().Store(tail)
	return int(tail - head)
}

// Receives takes all descriptors there are.
func (r *Ring) Receives() (list []shm.RecvDesc) {
	tail := r.Reg.RecvTail().Load()
	for ; r.taken != tail && len(list) < int(r.Reg.Receives); r.taken++ {
		var d shm.RecvDesc
		r.Reg.GetRecv(r.taken, &d)
		list = append(list, d)
	}
	r.Reg.RecvHead().Store(r.taken)
	return list
}

// Release gives a slot back, whether it was taken or not, and rings nobody.
func (r *Ring) Release(slot uint64) {
	r.Reg.PutRelease(r.freed, slot)
	r.freed++
	r.Reg.ReleaseTail().Store(r.freed)
}

// Words is how many shared words the page behind the header has.
const Words = 12

// Word is a shared word, as 64 bits also where it has 32.
func (r *Ring) Word(i int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&r.Mem[shm.HeaderBytes+128*i]))
}
