package adversary

import (
	"encoding/binary"
	"math"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/shm"
)

// bellActs change what both sides have of a doorbell, and pass descriptors that
// are slow to close.
var bellActs = []Act{
	{"bell/blocking", 3, bellBlocking},
	{"bell/full", 2, bellFull},
	{"bell/flags", 2, bellFlags},
	{"bell/storm", 2, bellStorm},
	{"bell/watched", 1, bellWatched},
	{"rights/lingering", 3, rightsLingering},
	{"rights/many", 2, rightsMany},
	{"rights/loops", 1, rightsLoops},
	{"rights/big-memory", 2, rightsBigMemory},
}

// cross has r's daemon end busy: it sends to itself, so that both doorbells are
// rung by the daemon as well.
func (r *Ring) cross(n uint64) {
	r.Flow(0, 1, r.Local)
	r.PostIf(shm.MakeWord(shm.KindEach, 64, 1), shm.SendDesc{Tag: n, Gen: 1, Cookie: uint32(n)})
	r.Reg.ClientSleeps().Store(math.MaxUint32) // it sleeps, for all there is
	r.Ring()
}

// fill writes the counter of an eventfd up to its brim; a doorbell that is
// something else is filled until it takes no more.
func fill(fd int) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], math.MaxUint64-1)
	unix.SetNonblock(fd, true)
	for range 1 << 16 {
		if _, err := unix.Write(fd, b[:]); err != nil {
			return
		}
	}
}

// bellBlocking takes O_NONBLOCK off every doorbell and lets the daemon ring.
func bellBlocking(s *Stage) error {
	for !s.Over() {
		r, err := s.BindRing(0, 0)
		if err != nil {
			s.Pause(20 * time.Millisecond)
			continue
		}
		for _, fd := range r.Bells {
			fill(fd)
			unix.SetNonblock(fd, false)
		}
		for n := range uint64(1 + s.IntN(50)) {
			r.cross(n)
			s.Hold(time.Millisecond)
			for _, fd := range r.Bells {
				unix.SetNonblock(fd, false)
			}
		}
		r.Close()
	}
	return nil
}

// bellWatched has what the daemon writes to watched forty thousand times, by each of
// 200 epoll sets under each of 200 numbers, so that every wake-up is a long way.
func bellWatched(s *Stage) error {
	r, err := s.BindRing(0, 0)
	if err != nil || len(r.Bells) < 2 {
		return nil
	}
	var open []int
	defer func() {
		for _, fd := range open {
			unix.Close(fd)
		}
	}()
	const side = 200
	for range side {
		if fd, err := unix.FcntlInt(uintptr(r.Bells[1]), unix.F_DUPFD_CLOEXEC, 0); err == nil {
			open = append(open, fd)
		}
	}
	for _, n := 0, len(open); len(open) < n+side && !s.Over(); {
		set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		if err != nil {
			break
		}
		for _, fd := range open[:n] {
			_ = unix.EpollCtl(set, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET})
		}
		open = append(open, set)
	}
	for n := uint64(0); !s.Over(); n++ {
		r.cross(n)
		s.Hold(time.Millisecond)
	}
	return nil
}

// bellFull never drains what the daemon rings, nor lets it be rung.
func bellFull(s *Stage) error {
	r, err := s.BindRing(0, 0)
	if err != nil {
		return nil
	}
	for n := uint64(0); !s.Over(); n++ {
		r.cross(n)
		for _, fd := range r.Bells {
			fill(fd)
		}
		s.Hold(time.Millisecond)
	}
	return nil
}

// bellFlags has doorbells raise signals, changes their buffers, shuts them
// down and reads what was for the daemon.
func bellFlags(s *Stage) error {
	for !s.Over() {
		r, err := s.BindRing(0, 0)
		if err != nil {
			s.Pause(20 * time.Millisecond)
			continue
		}
		for n := range uint64(20) {
			fd := oneOf(s, r.Bells...)
			switch s.IntN(6) {
			case 0:
				unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_ASYNC|unix.O_APPEND)
			case 1:
				unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 0)
				unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 0)
			case 2:
				unix.Shutdown(fd, s.IntN(3))
			case 3:
				var b [4096]byte
				unix.SetNonblock(fd, true)
				unix.Read(fd, b[:])
			case 4:
				unix.Write(fd, make([]byte, 1+s.IntN(64)))
				unix.Sendmsg(fd, []byte{1}, unix.UnixRights(fd), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) // refused by newer kernels
			case 5:
				unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK)
			}
			r.cross(n)
			s.Hold(500 * time.Microsecond)
		}
		r.Close()
	}
	return nil
}

// bellStorm rings without an end for nothing.
func bellStorm(s *Stage) error {
	r, err := s.BindRing(0, 0)
	if err != nil {
		return nil
	}
	for !s.Over() {
		for range 1000 {
			r.Ring()
		}
	}
	return nil
}

// pass sends a message, or the first piece of one, with descriptors.
func pass(p *Packets, fds ...int) {
	p.raw(func(fd int) {
		b := oneOfBytes[len(fds)%len(oneOfBytes)]
		unix.Sendmsg(fd, b, unix.UnixRights(fds...), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
}

// oneOfBytes are beginnings of packets: a message that is none, half a one, and
// no packet at all.
var oneOfBytes = [][]byte{{1, 0, 0, 0, 0x18, 0x01}, {1, 0, 0, 0, 0}, {7}}

// lingering is a TCP connection with unsent data and SO_LINGER: the process that closes it
// last waits.
func lingering(s *Stage) (fd int, ok bool) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, false
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return 0, false
	}
	keep(s, c)
	peer, err := l.Accept()
	if err != nil {
		return 0, false
	}
	keep(s, peer) // which never reads
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		return 0, false
	}
	fd = int(f.Fd())
	unix.SetNonblock(fd, true)
	for junk := make([]byte, 64<<10); ; {
		if _, err := unix.Write(fd, junk); err != nil {
			break
		}
	}
	unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 30})
	unix.SetNonblock(fd, false)
	s.After(func() { // the adversary itself does not wait
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		f.Close()
	})
	return fd, true
}

// passTo makes a connection to pass things over: before Bind, plain, or with rings.
func passTo(s *Stage) *Packets {
	switch s.IntN(3) {
	case 0:
		if r, err := s.BindRing(0, 0); err == nil {
			return r.Packets
		}
	case 1:
		if p, _, err := s.BindPackets(0, 0); err == nil {
			return p
		}
	}
	p, err := s.DialPackets()
	if err != nil {
		return nil
	}
	return p
}

func rightsLingering(s *Stage) error {
	fd, ok := lingering(s)
	for ok && !s.Over() {
		if p := passTo(s); p != nil {
			for range 1 + s.IntN(4) {
				copies := make([]int, 1+s.IntN(8))
				for i := range copies {
					copies[i] = fd
				}
				pass(p, copies...)
			}
		}
		s.Hold(20 * time.Millisecond)
	}
	// What the daemon has is now the last: let go of it first.
	return nil
}

// rightsMany passes as many descriptors as a packet takes, of all kinds.
func rightsMany(s *Stage) error {
	var mine []int
	add := func(fd int, err error) {
		if err == nil {
			mine = append(mine, fd)
			s.After(func() { unix.Close(fd) })
		}
	}
	add(unix.MemfdCreate("adversary", 0))
	add(unix.Eventfd(0, 0))
	add(unix.EpollCreate1(0))
	add(unix.TimerfdCreate(unix.CLOCK_MONOTONIC, 0))
	add(unix.Open("/proc/self/mem", unix.O_RDONLY, 0))
	add(unix.InotifyInit1(0))
	add(unix.Open("/", unix.O_PATH, 0))
	var pipe [2]int
	if unix.Pipe(pipe[:]) == nil {
		add(pipe[0], nil)
		add(pipe[1], nil)
	}
	for !s.Over() && len(mine) > 0 {
		p := passTo(s)
		if p == nil {
			s.Pause(5 * time.Millisecond)
			continue
		}
		for range 1 + s.IntN(50) {
			list := make([]int, 1+s.IntN(253))
			for i := range list {
				list[i] = oneOf(s, mine...)
			}
			pass(p, list...)
		}
		s.Hold(5 * time.Millisecond)
		p.Close()
	}
	return nil
}

// rightsLoops passes sockets over themselves, which only the kernel's garbage
// collector can end, to the daemon too.
func rightsLoops(s *Stage) error {
	for !s.Over() {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil
		}
		for range 20 {
			unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(pair[0], pair[1]), nil, unix.MSG_DONTWAIT)
		}
		if p := passTo(s); p != nil {
			pass(p, pair[0], pair[1])
			p.Close()
		}
		unix.Close(pair[0])
		unix.Close(pair[1])
		s.Hold(2 * time.Millisecond)
	}
	return nil
}

// rightsBigMemory passes the last reference to much memory, which takes a
// while to be freed.
func rightsBigMemory(s *Stage) error {
	for range 3 {
		fd, err := unix.MemfdCreate("adversary", unix.MFD_CLOEXEC)
		if err != nil || s.Over() {
			return nil
		}
		if unix.Fallocate(fd, 0, 0, 96<<20) == nil {
			if p := passTo(s); p != nil {
				pass(p, fd)
			}
		}
		unix.Close(fd)
		s.Hold(50 * time.Millisecond)
	}
	return nil
}
