package netlocal

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/eintr"
)

// answerTime bounds the wait for the kernel's answer, which comes at once.
const answerTime = time.Second

// answerMost is the longest answer that is read.
const answerMost = 8192

// answers are where they are received: a daemon asks several times for each connection.
var answers = sync.Pool{New: func() any { return new([answerMost]byte) }}

// ask sends one request of the given type and body to a netlink family and
// returns the body of the only message that answers it. An answer that is an
// error is a syscall.Errno.
func ask(family int, kind uint16, body []byte) ([]byte, error) {
	fd, err := open(family, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	tv := unix.NsecToTimeval(answerTime.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return nil, os.NewSyscallError("setsockopt", err)
	}
	if err := send(fd, kind, unix.NLM_F_REQUEST, body); err != nil {
		return nil, err
	}
	buf := answers.Get().(*[answerMost]byte)
	defer answers.Put(buf)
	msgs, err := receive(fd, buf[:])
	if err != nil {
		return nil, err
	}
	for _, m := range msgs {
		switch {
		case m.Header.Type == unix.NLMSG_ERROR && len(m.Data) >= 4:
			return nil, syscall.Errno(-int32(native.Uint32(m.Data)))
		case m.Header.Type == kind || m.Header.Type == unix.RTM_NEWROUTE:
			return bytes.Clone(m.Data), nil
		}
	}
	return nil, fmt.Errorf("netlink: %d messages and no answer", len(msgs))
}

// open makes a netlink socket, in the multicast groups of the mask.
func open(family int, groups uint32) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, family)
	if err != nil {
		return -1, os.NewSyscallError("netlink socket", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("netlink bind", err)
	}
	return fd, nil
}

func send(fd int, kind, flags uint16, body []byte) error {
	m := make([]byte, unix.NLMSG_HDRLEN, unix.NLMSG_HDRLEN+len(body))
	native.PutUint32(m, uint32(unix.NLMSG_HDRLEN+len(body)))
	native.PutUint16(m[4:], kind)
	native.PutUint16(m[6:], flags)
	native.PutUint32(m[8:], 1)
	m = append(m, body...)
	err := eintr.Again(func() error { return unix.Sendto(fd, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}) })
	return os.NewSyscallError("netlink send", err)
}

// receive reads one datagram, which must come from the kernel.
func receive(fd int, buf []byte) ([]syscall.NetlinkMessage, error) {
	for {
		n, from, err := unix.Recvfrom(fd, buf, 0)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return nil, os.NewSyscallError("netlink receive", err)
		}
		if nl, ok := from.(*unix.SockaddrNetlink); !ok || nl.Pid != 0 {
			continue
		}
		return syscall.ParseNetlinkMessage(buf[:n])
	}
}
