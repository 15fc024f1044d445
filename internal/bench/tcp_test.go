package bench

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Two processes and one TCP connection. File: the socket, blocking.

var (
	roleTCPPing = register("TCP ping", runTCPPing)
	roleTCPEcho = register("TCP echo", runTCPEcho)
	roleTCPSend = register("TCP sender", runTCPSend)
	roleTCPRecv = register("TCP receiver", runTCPRecv)
)

// tcpTrip measures round trips over a bare connection, each end pinned to a
// processor: a blocking ping-pong that may move has two states, both ends on one
// core or each on its own, and one run can show either.
func tcpTrip(bytes int, blocking bool, cores [2]int) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(d)
		defer w.close()
		return w.tcp(d, args{Bytes: bytes, Blocking: blocking}, roleTCPEcho, roleTCPPing, cores)
	}
}

// tcpWay measures frames of 8+bytes, packed into writes of about chunk bytes
// and walked by the receiver, over socket buffers of buf bytes (0: the kernel's
// choice).
func tcpWay(bytes, chunk, buf int) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(d)
		defer w.close()
		return w.tcp(d, args{Bytes: bytes, Chunk: chunk, Buffer: buf}, roleTCPSend, roleTCPRecv, [2]int{})
	}
}

func (w *world) tcp(d time.Duration, a args, first, second string, cores [2]int) (sample, error) {
	c0, c1, err := tcpPair(a.Buffer)
	if err != nil {
		return sample{}, err
	}
	w.own(c0)
	w.own(c1)
	a.Core = cores[0]
	if _, err := w.role(first, a, c0); err != nil {
		return sample{}, err
	}
	a.Core = cores[1]
	p, err := w.role(second, a, c1)
	if err != nil {
		return sample{}, err
	}
	return w.window(p, wordCount, d)
}

func runTCPPing(r *role) error {
	if err := r.lockThread(); err != nil {
		return err
	}
	b := make([]byte, r.Bytes)
	for n := uint64(0); ; n++ {
		begun := time.Now()
		stamp(b, n)
		if err := r.sendAll(b); err != nil {
			return err
		}
		if err := r.recvAll(b); err != nil {
			return err
		}
		if err := checkStamp(b, r.Bytes, n); err != nil {
			return err
		}
		r.board.record(time.Since(begun))
		r.board.set(wordCount, n+1)
	}
}

func runTCPEcho(r *role) error {
	if err := r.lockThread(); err != nil {
		return err
	}
	b := make([]byte, r.Bytes)
	for {
		if err := r.recvAll(b); err != nil {
			return err
		}
		if err := r.sendAll(b); err != nil {
			return err
		}
	}
}

func (r *role) sendAll(b []byte) error {
	for len(b) > 0 {
		n, err := 0, error(nil)
		if r.Blocking {
			n, err = blocking(syscall.SYS_SENDTO, r.fd(0), b)
		} else {
			n, err = send(r.fd(0), b)
		}
		if err != nil {
			return err
		}
		b = b[max(n, 0):]
	}
	return nil
}

func (r *role) recvAll(b []byte) error {
	for len(b) > 0 {
		n, err := 0, error(nil)
		if r.Blocking {
			n, err = blocking(syscall.SYS_RECVFROM, r.fd(0), b)
		} else {
			n, err = recv(r.fd(0), b)
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return io.EOF
		}
		b = b[max(n, 0):]
	}
	return nil
}

// blocking is sendto or recvfrom that sleeps in the system call.
func blocking(call uintptr, fd int, b []byte) (int, error) {
	n, _, e := syscall.Syscall6(call, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_NOSIGNAL, 0, 0)
	if e == syscall.EINTR {
		return -1, nil
	}
	if e != 0 {
		return 0, os.NewSyscallError("TCP", e)
	}
	return int(n), nil
}

func runTCPSend(r *role) error {
	if err := r.lockThread(); err != nil {
		return err
	}
	r.Blocking = true
	size := recBytes(r.Bytes)
	frames := max(1, r.Chunk/size)
	out := make([]byte, frames*size)
	payload := make([]byte, r.Bytes)
	for seq := uint64(0); ; {
		for at := 0; at < len(out); at += size {
			binary.LittleEndian.PutUint64(out[at:], uint64(r.Bytes))
			p := out[at+recHdr : at+recHdr+r.Bytes]
			copy(p, payload)
			stamp(p, seq)
			seq++
		}
		if err := r.sendAll(out); err != nil {
			return err
		}
	}
}

func runTCPRecv(r *role) error {
	if err := r.lockThread(); err != nil {
		return err
	}
	in := make([]byte, max(256<<10, 2*recBytes(r.Bytes)))
	have := 0
	for seq := uint64(0); ; {
		n, err := blocking(syscall.SYS_RECVFROM, r.fd(0), in[have:])
		if err != nil {
			return err
		}
		if n == 0 {
			return errors.New("the sender went away")
		}
		have += max(n, 0)
		b := in[:have]
		for len(b) >= recHdr {
			p, size, err := payload(b)
			if err != nil {
				break // not whole yet
			}
			if err := checkStamp(p, r.Bytes, seq); err != nil {
				return err
			}
			seq++
			b = b[size:]
		}
		have = copy(in, b)
		r.board.set(wordCount, seq)
	}
}
