package bench

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/roce"
)

// Two processes and packets of RoCEv2 between them without its protocol: the layout, the CRC
// and the copy into place, and nothing that would repeat what is lost. It is the floor of
// RoCEv2 in user space: UDP_SEGMENT, UDP_GRO, one pass of CRC at each end, one copy. A message
// is a WRITE without an immediate: its last packet leaves with those before it, where a write
// with one has a longer last packet, which leaves alone. Files: the socket of the process.

var (
	roleBareRoCESend = register("bare RoCEv2 sender", runBareRoCESend)
	roleBareRoCERecv = register("bare RoCEv2 receiver", runBareRoCERecv)
)

const (
	bareBTH   = 12
	bareRETH  = 16 // of the first packet of a message
	bareICRC  = 4
	bareBurst = 65507 // bytes that one call may have the kernel cut
	bareSlots = 16    // messages on their way, as one-sided links have
	bareBuf   = 4 << 20

	bareFirst, bareMiddle, bareLast = 0x06, 0x07, 0x08
)

// bareRoCE measures messages of so many bytes in packets of mtu.
func bareRoCE(bytes, mtu int, noGSO bool) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(d)
		defer w.close()
		var files [2]*os.File
		var ends [2]string
		for i, a := range []string{nodeA, nodeB} {
			f, at, err := bareSocket(a)
			if err != nil {
				return sample{}, err
			}
			files[i], ends[i] = w.own(f), at
		}
		a := args{Bytes: bytes, MTU: mtu, NoGSO: noGSO, Spin: 50 * time.Microsecond}
		a.Local, a.Target = ends[1], ends[0]
		p, err := w.role(roleBareRoCERecv, a, files[1])
		if err != nil {
			return sample{}, err
		}
		a.Local, a.Target = ends[0], ends[1]
		if _, err := w.role(roleBareRoCESend, a, files[0]); err != nil {
			return sample{}, err
		}
		return w.window(p, wordCount, d)
	}
}

// bareSocket is a UDP socket that leaves packets whole, and puts them together again.
func bareSocket(addr string) (f *os.File, at string, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, "", os.NewSyscallError("socket", err)
	}
	f = os.NewFile(uintptr(fd), "bare RoCEv2")
	for _, o := range [][3]int{
		{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO}, {unix.SOL_UDP, unix.UDP_GRO, 1},
		{unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bareBuf}, {unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, bareBuf},
	} {
		if err := unix.SetsockoptInt(fd, o[0], o[1], o[2]); err != nil {
			f.Close()
			return nil, "", skip("what is lost is not repeated, so a large buffer is needed, and root for that: %v", err)
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: netip.MustParseAddr(addr).As4()}); err != nil {
		f.Close()
		return nil, "", os.NewSyscallError("bind", err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		f.Close()
		return nil, "", os.NewSyscallError("getsockname", err)
	}
	return f, net.JoinHostPort(addr, fmt.Sprint(sa.(*unix.SockaddrInet4).Port)), nil
}

// bareMsg is struct mmsghdr.
type bareMsg struct {
	hdr unix.Msghdr
	n   uint32
	_   [4]byte
}

// bareCall is sendmmsg or recvmmsg; fewer messages than asked for, or none, is no error.
func bareCall(call uintptr, fd int, msgs []bareMsg) (int, error) {
	n, _, e := syscall.RawSyscall6(call, uintptr(fd), uintptr(unsafe.Pointer(&msgs[0])), uintptr(len(msgs)), unix.MSG_DONTWAIT, 0, 0)
	if e == syscall.EAGAIN || e == syscall.EINTR {
		return 0, nil
	}
	return int(n), wrapErrno(e)
}

func wrapErrno(e syscall.Errno) error {
	if e == 0 {
		return nil
	}
	return os.NewSyscallError("bare RoCEv2", e)
}

// barePoll sleeps until the socket is readable.
func (r *role) barePoll() error {
	_, err := unix.Poll([]unix.PollFd{{Fd: int32(r.fd(0)), Events: unix.POLLIN}}, -1)
	if err == unix.EINTR {
		return nil
	}
	return err
}

// bareOut is a message as it is sent: packets of headers, a piece of the payload and the CRC,
// and the calls' messages, each of which is a burst of equal packets.
type bareOut struct {
	head  [][bareBTH + bareRETH]byte
	crc   [][bareICRC]byte
	iov   []unix.Iovec
	msgs  []bareMsg
	first []int // packet that each message begins with
	ctl   [][unix.SizeofCmsghdr + 8]byte
}

// plan lays the packets of a message out.
func (r *role) plan(payload []byte, to *unix.RawSockaddrInet4) *bareOut {
	n := (len(payload) + r.MTU - 1) / r.MTU
	o := &bareOut{head: make([][bareBTH + bareRETH]byte, n), crc: make([][bareICRC]byte, n), iov: make([]unix.Iovec, 0, 3*n), ctl: make([][unix.SizeofCmsghdr + 8]byte, n)}
	most := max(1, bareBurst/(bareBTH+r.MTU+bareICRC))
	if r.NoGSO {
		most = 1
	}
	for i := range n {
		hdr := bareBTH
		o.head[i][0] = bareMiddle
		switch i {
		case 0:
			o.head[i][0] = bareFirst
			hdr += bareRETH
			binary.BigEndian.PutUint32(o.head[i][24:], uint32(len(payload)))
		case n - 1:
			o.head[i][0] = bareLast
		}
		o.head[i][2], o.head[i][3] = 0xff, 0xff
		// The first is longer by its header, and goes alone.
		if i <= 1 || i-o.first[len(o.first)-1] == most {
			o.first = append(o.first, i)
		}
		for _, b := range [][]byte{o.head[i][:hdr], payload[i*r.MTU : min(len(payload), (i+1)*r.MTU)], o.crc[i][:]} {
			v := unix.Iovec{Base: &b[0]}
			v.SetLen(len(b))
			o.iov = append(o.iov, v)
		}
	}
	o.msgs = make([]bareMsg, len(o.first))
	for m, first := range o.first {
		end := n
		if m+1 < len(o.first) {
			end = o.first[m+1]
		}
		h := &o.msgs[m].hdr
		h.Name, h.Namelen = (*byte)(unsafe.Pointer(to)), unix.SizeofSockaddrInet4
		h.Iov = &o.iov[3*first]
		h.SetIovlen(3 * (end - first))
		if end-first > 1 {
			c := (*unix.Cmsghdr)(unsafe.Pointer(&o.ctl[m][0]))
			c.Level, c.Type = unix.SOL_UDP, unix.UDP_SEGMENT
			c.SetLen(unix.SizeofCmsghdr + 2)
			binary.NativeEndian.PutUint16(o.ctl[m][unix.SizeofCmsghdr:], uint16(bareBTH+r.MTU+bareICRC))
			h.Control = &o.ctl[m][0]
			h.SetControllen(len(o.ctl[m]))
		}
	}
	return o
}

// sign computes the CRC of each packet for the identification that it leaves with.
func (o *bareOut) sign(f *roce.Flow, payload []byte, mtu int, psn uint32) {
	burst := 0
	for i := range o.head {
		if burst+1 < len(o.first) && o.first[burst+1] == i {
			burst++
		}
		h := o.head[i][:bareBTH]
		if i == 0 {
			h = o.head[i][:]
		}
		binary.BigEndian.PutUint32(h[8:], psn+uint32(i)) // and the bit that asks for an acknowledgement
		h[8] = 0
		sum := f.ICRC(uint16(i-o.first[burst]), h, payload[i*mtu:min(len(payload), (i+1)*mtu)])
		binary.LittleEndian.PutUint32(o.crc[i][:], sum)
	}
}

func rawAddr(a netip.AddrPort) *unix.RawSockaddrInet4 {
	s := &unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: a.Addr().As4()}
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&s.Port))[:], a.Port())
	return s
}

func runBareRoCESend(r *role) error {
	if err := r.lockThread(); err != nil {
		return err
	}
	local, remote := netip.MustParseAddrPort(r.Local), netip.MustParseAddrPort(r.Target)
	flow, err := roce.NewFlow(local, remote)
	if err != nil {
		return err
	}
	payload := make([]byte, r.Bytes)
	o := r.plan(payload, rawAddr(remote))
	packets := uint32(len(o.head))
	var answer [8]byte
	idle := idler{budget: r.Spin}
	for sent, done := uint64(0), uint64(0); ; sent++ {
		for sent-done >= bareSlots {
			n, err := recv(r.fd(0), answer[:])
			switch {
			case err != nil:
				return err
			case n == len(answer):
				done = binary.LittleEndian.Uint64(answer[:])
				idle.busy()
			case idle.idle():
				if err := r.barePoll(); err != nil {
					return err
				}
			}
		}
		stamp(payload, sent)
		o.sign(flow, payload, r.MTU, uint32(sent)*packets)
		for at := 0; at < len(o.msgs); {
			n, err := bareCall(unix.SYS_SENDMMSG, r.fd(0), o.msgs[at:])
			if err != nil {
				return err
			}
			if at += n; n == 0 {
				yield()
			}
		}
		runtime.KeepAlive(o)
	}
}

func runBareRoCERecv(r *role) error {
	if err := r.lockThread(); err != nil {
		return err
	}
	local, remote := netip.MustParseAddrPort(r.Local), netip.MustParseAddrPort(r.Target)
	flow, err := roce.NewFlow(remote, local)
	if err != nil {
		return err
	}
	const slots, slotBytes = 4, 64 << 10
	stage := make([]byte, slots*slotBytes)
	var iov [slots]unix.Iovec
	var ctl [slots][unix.SizeofCmsghdr + 8]byte
	msgs := make([]bareMsg, slots)
	in := bareIn{r: r, flow: flow, mem: make([]byte, r.Bytes)}
	idle := idler{budget: r.Spin}
	to := &unix.SockaddrInet4{Port: int(remote.Port()), Addr: remote.Addr().As4()}
	for answered := uint64(0); ; {
		for i := range msgs {
			iov[i].Base = &stage[i*slotBytes]
			iov[i].SetLen(slotBytes)
			h := &msgs[i].hdr
			h.Iov = &iov[i]
			h.SetIovlen(1)
			h.Control = &ctl[i][0]
			h.SetControllen(len(ctl[i]))
		}
		n, err := bareCall(unix.SYS_RECVMMSG, r.fd(0), msgs)
		if err != nil {
			return err
		}
		if n == 0 {
			if idle.idle() {
				if err := r.barePoll(); err != nil {
					return err
				}
			}
			continue
		}
		idle.busy()
		for i := range n {
			if err := in.take(stage[i*slotBytes:][:msgs[i].n], ctl[i][:msgs[i].hdr.Controllen]); err != nil {
				return err
			}
		}
		r.board.set(wordCount, in.messages)
		if in.messages-answered >= oneSidedAnswer {
			answered = in.messages
			if err := unix.Sendto(r.fd(0), binary.LittleEndian.AppendUint64(nil, answered), 0, to); err != nil {
				return err
			}
		}
	}
}

// bareIn puts payloads into place.
type bareIn struct {
	r        *role
	flow     *roce.Flow
	mem      []byte
	at       int
	psn      uint32
	messages uint64
}

// take is one message of a call: packets of equal length, of which the last may be shorter.
func (in *bareIn) take(b, ctl []byte) error {
	size := len(b)
	if len(ctl) >= unix.SizeofCmsghdr+4 {
		size = int(binary.NativeEndian.Uint32(ctl[unix.SizeofCmsghdr:]))
	}
	for len(b) > 0 {
		p := b[:min(size, len(b))]
		b = b[len(p):]
		if _, ok := in.flow.Check(p); !ok {
			return fmt.Errorf("the CRC of a packet of %d bytes is wrong", len(p))
		}
		if psn := binary.BigEndian.Uint32(p[8:]) & (1<<24 - 1); psn != in.psn&(1<<24-1) {
			return fmt.Errorf("packet %d where %d should be: it was lost", psn, in.psn)
		}
		in.psn++
		data := p[bareBTH : len(p)-bareICRC]
		if p[0] == bareFirst {
			data = data[bareRETH:]
			in.at = 0
		}
		in.at += copy(in.mem[in.at:], data)
		if p[0] == bareLast {
			if err := checkStamp(in.mem[:in.at], in.r.Bytes, in.messages); err != nil {
				return err
			}
			in.messages++
		}
	}
	return nil
}
