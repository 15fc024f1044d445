package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/node/config"
)

// The yardstick: what four processes can do that do nothing but relay. An
// application writes records into a ring in shared memory; a daemon sends
// whole spans of it over TCP; another receives straight into the ring of the
// application at the other end. A record is on the wire what it is in the ring.
// No sockets, no sequence, no acknowledgement, no congestion.
//
// Each process is one locked thread that serves both directions and makes only
// system calls that do not block until it sleeps; before that it yields for
// spinFor. A daemon sleeps in ppoll, on its TCP socket and one eventfd; an
// application sleeps on a futex in the ring.

const (
	spinFor = 50 * time.Microsecond // more than two wake-ups across cores: nothing is pinned
	// Buffers that grow to megabytes push out of the cache what the rings keep
	// in it: at 64 KiB and 1 MiB these carried 4.5 GB/s, the kernel's own choice
	// 3.3 to 3.6.
	socketBuf = 128 << 10
	sendMax   = 256 << 10 // bytes given to one send
	recvMax   = 256 << 10
	maxRec    = 1 << 20
)

var (
	roleRelay  = register("relay daemon", runRelay)
	roleSource = register("ring source", runSource)
	roleSink   = register("ring sink", runSink)
	rolePing   = register("ring ping", runPing)
	roleEcho   = register("ring echo", runEcho)
)

// ringSize is room for four records, and no more: what is under way shall stay
// in the cache of a core. At 64 B 256 KiB carried 46 to 50 M/s, 1 MiB 39 and
// 8 MiB 32.
func ringSize(payload int) int {
	size := 256 << 10
	for size < 4*recBytes(payload) {
		size *= 2
	}
	return size
}

// --- the daemon ----------------------------------------------------------------------

// relayDaemon moves bytes between two rings and a socket. Files: ring from the
// application, ring to it, TCP socket, bell.
type relayDaemon struct {
	fd, bell int
	out      consumer // from the application
	in       producer // to the application
	whole    uint64   // of in: end of the last whole record
	sndFull  bool     // TCP takes nothing now
	dry      bool     // TCP had nothing the last time
	idle     idler
}

func runRelay(r *role) error {
	if err := r.lockThread(); err != nil {
		return err
	}
	tx, err := mapRing(r.fd(0), ringSize(r.Bytes))
	if err != nil {
		return err
	}
	rx, err := mapRing(r.fd(1), ringSize(r.Bytes))
	if err != nil {
		return err
	}
	d := &relayDaemon{fd: r.fd(2), bell: r.fd(3), idle: idler{budget: r.Spin}}
	d.out.ring, d.in.ring = tx, rx
	for {
		a, err := d.send()
		if err != nil {
			return err
		}
		b, err := d.recv()
		if err != nil {
			return err
		}
		if a || b {
			d.idle.busy()
		} else if d.idle.idle() {
			d.sleep()
			d.idle.busy()
		}
	}
}

// send gives TCP one span of the ring.
func (d *relayDaemon) send() (bool, error) {
	span := d.out.span()
	if len(span) == 0 {
		return false, nil
	}
	n, err := send(d.fd, span[:min(len(span), sendMax)])
	if d.sndFull = n < 0; d.sndFull || err != nil {
		return false, err
	}
	d.out.consume(n)
	return true, nil
}

// recv receives into the ring and shows the application the whole records.
func (d *relayDaemon) recv() (bool, error) {
	room := d.in.room(recvMax)
	if room == 0 || d.dry && !readable(d.fd) {
		return false, nil
	}
	n, err := recv(d.fd, d.in.at(d.in.pos, min(room, recvMax)))
	if d.dry = n < 0; d.dry || err != nil {
		return false, err
	}
	if n == 0 {
		return false, io.EOF
	}
	d.in.pos += uint64(n)
	was := d.whole
	for left := d.in.pos - d.whole; left >= recHdr; left = d.in.pos - d.whole {
		n := binary.LittleEndian.Uint32(d.in.at(d.whole, recHdr))
		if n > maxRec {
			return false, fmt.Errorf("a record of %d bytes", n)
		}
		size := uint64(recBytes(int(n)))
		if size > left {
			break
		}
		d.whole += size
	}
	if d.whole != was {
		d.in.publish(d.whole)
	}
	return true, nil
}

// sleep waits for the socket or the bell.
func (d *relayDaemon) sleep() {
	fds := [2]unix.PollFd{{Fd: int32(d.fd)}, {Fd: int32(d.bell), Events: unix.POLLIN}}
	atomic.StoreUint32(d.out.asleep, onBell)
	work := len(d.out.span()) > 0 && !d.sndFull
	if d.sndFull {
		fds[0].Events |= unix.POLLOUT
	}
	if d.in.room(1) > 0 {
		fds[0].Events |= unix.POLLIN
	} else {
		atomic.StoreUint32(d.in.full, onBell)
		work = work || d.in.room(1) > 0
	}
	if !work {
		poll(fds[:])
	}
	atomic.StoreUint32(d.out.asleep, awake)
	atomic.StoreUint32(d.in.full, awake)
	if fds[1].Revents != 0 {
		var b [8]byte
		unix.Read(d.bell, b[:])
	}
}

// --- applications -----------------------------------------------------------------------

// openRings maps the ring to send into and the one to receive from, either of
// which may be missing, and the bell of who is at their other end.
// Files: ring to send, ring to receive, bell.
func openRings(r *role, tx, rx bool) (p *producer, c *consumer, err error) {
	p, c = &producer{idle: idler{budget: r.Spin}}, &consumer{idle: idler{budget: r.Spin}}
	if tx {
		if p.ring, err = mapRing(r.fd(0), ringSize(r.Bytes)); err != nil {
			return nil, nil, err
		}
		p.consumerBell = r.fd(2)
	}
	if rx {
		if c.ring, err = mapRing(r.fd(1), ringSize(r.Bytes)); err != nil {
			return nil, nil, err
		}
		c.producerBell = r.fd(2)
	}
	return p, c, r.lockThread()
}

// stamp signs a payload with the number of its datagram, at both ends of it.
func stamp(p []byte, seq uint64) {
	binary.LittleEndian.PutUint64(p, seq)
	binary.LittleEndian.PutUint64(p[len(p)-8:], ^seq)
}

// readStamp is the number of a datagram that arrived whole.
func readStamp(p []byte, size int) (uint64, error) {
	if len(p) == size {
		if seq := binary.LittleEndian.Uint64(p); binary.LittleEndian.Uint64(p[size-8:]) == ^seq {
			return seq, nil
		}
	}
	return 0, fmt.Errorf("a payload of %d bytes that begins with %x is not what was sent", len(p), p[:min(8, len(p))])
}

func checkStamp(p []byte, size int, want uint64) error {
	seq, err := readStamp(p, size)
	if err == nil && seq != want {
		err = fmt.Errorf("datagram %d where %d should be", seq, want)
	}
	return err
}

// runSource copies datagrams into the ring as fast as it takes them.
func runSource(r *role) error {
	p, _, err := openRings(r, true, false)
	if err != nil {
		return err
	}
	payload := make([]byte, r.Bytes)
	need := r.Batch * recBytes(r.Bytes)
	for seq := uint64(0); ; {
		p.wait(need)
		for range r.Batch {
			b := p.record(r.Bytes)
			copy(b, payload)
			stamp(b, seq)
			seq++
		}
		p.publish(p.pos)
	}
}

// runSink reads datagrams where they lie.
func runSink(r *role) error {
	_, c, err := openRings(r, false, true)
	if err != nil {
		return err
	}
	seq := uint64(0)
	for {
		span := c.wait()
		span = span[:min(len(span), sinkMax(r.Bytes))]
		done := 0
		for done < len(span) {
			b, size, err := payload(span[done:])
			if err != nil {
				if done > 0 {
					break // cut by sinkMax
				}
				return err
			}
			if err := checkStamp(b, r.Bytes, seq); err != nil {
				return err
			}
			seq++
			done += size
		}
		c.consume(done)
		r.board.set(wordCount, seq)
	}
}

// sinkMax bounds how much is read before the ring gets it back.
func sinkMax(payload int) int { return max(64<<10, recBytes(payload)) }

func runPing(r *role) error {
	p, c, err := openRings(r, true, true)
	if err != nil {
		return err
	}
	for seq := uint64(0); ; seq++ {
		begun := time.Now()
		p.wait(recBytes(r.Bytes))
		stamp(p.record(r.Bytes), seq)
		p.publish(p.pos)
		b, size, err := payload(c.wait())
		if err != nil {
			return err
		}
		if err := checkStamp(b, r.Bytes, seq); err != nil {
			return err
		}
		c.consume(size)
		r.board.record(time.Since(begun))
		r.board.set(wordCount, seq+1)
		if r.Pause > 0 {
			time.Sleep(r.Pause)
		}
	}
}

func runEcho(r *role) error {
	p, c, err := openRings(r, true, true)
	if err != nil {
		return err
	}
	for {
		b, size, err := payload(c.wait())
		if err != nil {
			return err
		}
		p.wait(size)
		copy(p.record(len(b)), b)
		c.consume(size)
		p.publish(p.pos)
	}
}

// --- programs ------------------------------------------------------------------------------

// relayWay measures datagrams one way through the relay.
func relayWay(bytes int) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(d)
		defer w.close()
		sink, err := w.relay(wayArgs(bytes), roleSource, roleSink)
		if err != nil {
			return sample{}, err
		}
		return w.window(sink, wordCount, d)
	}
}

// wayArgs lets records be published in batches of at most 256, and 64 KiB.
func wayArgs(bytes int) args {
	return args{Bytes: bytes, Batch: max(1, min(256, (64<<10)/recBytes(bytes))), Spin: spinFor}
}

// relayTrip measures round trips through the relay.
func relayTrip(bytes int, pause time.Duration) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(d)
		defer w.close()
		ping, err := w.relay(args{Bytes: bytes, Spin: spinFor, Pause: pause}, roleEcho, rolePing)
		if err != nil {
			return sample{}, err
		}
		return w.window(ping, wordCount, d)
	}
}

// relayTripLoad measures round trips through a relay while another one carries
// datagrams of so many bytes: what the processors leave to them.
func relayTripLoad(bytes, load int) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(d)
		defer w.close()
		sink, err := w.relay(wayArgs(load), roleSource, roleSink)
		if err != nil {
			return sample{}, err
		}
		if err := w.until("the load flows", func() bool { return sink.board.load(wordCount) > 0 }); err != nil {
			return sample{}, err
		}
		ping, err := w.relay(args{Bytes: bytes, Spin: spinFor}, roleEcho, rolePing)
		if err != nil {
			return sample{}, err
		}
		return w.window(ping, wordCount, d)
	}
}

// relay starts four processes: one application and its daemon on either side.
// It returns the second application.
func (w *world) relay(a args, first, second string) (*proc, error) {
	c0, c1, err := tcpPair(socketBuf)
	if err != nil {
		return nil, err
	}
	var last *proc
	for i, app := range []string{first, second} {
		f, err := w.newApp(a)
		if err != nil {
			return nil, err
		}
		if _, err := w.role(roleRelay, a, f.tx, f.rx, w.own([]*os.File{c0, c1}[i]), f.bell); err != nil {
			return nil, err
		}
		if last, err = w.role(app, a, f.tx, f.rx, f.bell); err != nil {
			return nil, err
		}
	}
	return last, nil
}

// appFiles is what an application and its daemon share.
type appFiles struct {
	tx, rx *os.File // rings from the application and to it
	bell   *os.File // eventfd of the daemon
}

func (w *world) newApp(a args) (f appFiles, err error) {
	size := ringBytes(ringSize(a.Bytes))
	if f.tx, err = memFile("tx", size); err != nil {
		return f, err
	}
	w.own(f.tx)
	if f.rx, err = memFile("rx", size); err != nil {
		return f, err
	}
	w.own(f.rx)
	efd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return f, os.NewSyscallError("eventfd", err)
	}
	f.bell = w.own(os.NewFile(uintptr(efd), "bell"))
	return f, nil
}

// pairTrip measures round trips between two processes over two rings.
func pairTrip(bytes int) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(d)
		defer w.close()
		a := args{Bytes: bytes, Spin: spinFor}
		f, err := w.newApp(a)
		if err != nil {
			return sample{}, err
		}
		if _, err := w.role(roleEcho, a, f.rx, f.tx, f.bell); err != nil {
			return sample{}, err
		}
		ping, err := w.role(rolePing, a, f.tx, f.rx, f.bell)
		if err != nil {
			return sample{}, err
		}
		return w.window(ping, wordCount, d)
	}
}

// tcpPair is a connection over loopback, both ends of it, with socket buffers of
// so many bytes; 0 leaves them to the kernel. Neither is known to
// this process's net poller, which would be woken by every segment.
func tcpPair(buf int) (a, b *os.File, err error) {
	as := func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) { congestion(int(fd)) })
	}
	l, err := (&net.ListenConfig{Control: as}).Listen(context.Background(), "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	c, err := (&net.Dialer{Control: as}).Dial("tcp4", l.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	defer c.Close()
	d, err := l.Accept()
	if err != nil {
		return nil, nil, err
	}
	defer d.Close()
	if a, err = blockingFile(c, buf); err != nil {
		return nil, nil, err
	}
	if b, err = blockingFile(d, buf); err != nil {
		a.Close()
		return nil, nil, err
	}
	return a, b, nil
}

// congestion gives a baseline's socket the congestion control that rdsd's have
// (rds.tcp_congestion), or leaves it alone where rdsd would.
func congestion(fd int) {
	_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, config.Default().RDS.TCPCongestion)
}

func blockingFile(c net.Conn, buf int) (*os.File, error) {
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	var dupErr error
	if err := raw.Control(func(s uintptr) { fd, dupErr = unix.FcntlInt(s, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, err
	}
	if dupErr != nil {
		return nil, os.NewSyscallError("fcntl", dupErr)
	}
	err = unix.SetNonblock(fd, false)
	if buf > 0 {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, buf),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, buf))
	}
	return os.NewFile(uintptr(fd), "TCP"), err
}
