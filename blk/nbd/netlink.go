package nbd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/eintr"
	"github.com/rdsd/rdsd/rdserr"
)

// Generic netlink, as much of it as the NBD driver needs: one request, its
// answers, an acknowledgement. Integers are in the machine's byte order.

// netlinkTimeout bounds how long the kernel may take to answer.
const netlinkTimeout = 10 * time.Second

// message builds a generic netlink request.
type message struct{ b []byte }

var native = binary.NativeEndian

// newMessage begins a request; flags are added to NLM_F_REQUEST.
func newMessage(family uint16, cmd, version uint8, flags uint16) *message {
	m := &message{b: make([]byte, unix.NLMSG_HDRLEN+unix.GENL_HDRLEN, 256)}
	native.PutUint16(m.b[4:], family)
	native.PutUint16(m.b[6:], unix.NLM_F_REQUEST|flags)
	m.b[16], m.b[17] = cmd, version
	return m
}

// finish sets the length and the sequence number.
func (m *message) finish(seq uint32) []byte {
	native.PutUint32(m.b, uint32(len(m.b)))
	native.PutUint32(m.b[8:], seq)
	return m.b
}

func (m *message) attr(kind uint16, data []byte) {
	m.b = native.AppendUint16(m.b, uint16(unix.SizeofNlAttr+len(data)))
	m.b = native.AppendUint16(m.b, kind)
	m.b = append(m.b, data...)
	m.pad()
}

func (m *message) pad() {
	for len(m.b)%unix.NLA_ALIGNTO != 0 {
		m.b = append(m.b, 0)
	}
}

func (m *message) u32(kind uint16, v uint32) { m.attr(kind, native.AppendUint32(nil, v)) }
func (m *message) u64(kind uint16, v uint64) { m.attr(kind, native.AppendUint64(nil, v)) }
func (m *message) str(kind uint16, s string) { m.attr(kind, append([]byte(s), 0)) }

// nest wraps the attributes that fill adds into one.
func (m *message) nest(kind uint16, fill func()) {
	at := len(m.b)
	m.attr(kind|unix.NLA_F_NESTED, nil)
	fill()
	native.PutUint16(m.b[at:], uint16(len(m.b)-at))
}

// eachAttr calls f for the attributes in b.
func eachAttr(b []byte, f func(kind uint16, data []byte) error) error {
	for len(b) > 0 {
		if len(b) < unix.SizeofNlAttr {
			return rdserr.With(rdserr.ErrProtocol, "netlink: %d bytes after the last attribute", len(b))
		}
		n := int(native.Uint16(b))
		if n < unix.SizeofNlAttr || n > len(b) {
			return rdserr.With(rdserr.ErrProtocol, "netlink: an attribute of %d bytes with %d left", n, len(b))
		}
		if err := f(native.Uint16(b[2:])&^unix.NLA_F_NESTED, b[unix.SizeofNlAttr:n]); err != nil {
			return err
		}
		b = b[min((n+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1), len(b)):]
	}
	return nil
}

// getU32 reads an attribute that is a number.
func getU32(data []byte) (uint32, error) {
	if len(data) < 4 {
		return 0, rdserr.With(rdserr.ErrProtocol, "netlink: a number of %d bytes; want 4", len(data))
	}
	return native.Uint32(data), nil
}

// netlink sends one request and returns the answers, generic header cut off.
type netlink interface {
	call(request []byte) (answers [][]byte, err error)
	close()
}

// genlSocket is a socket of the kernel's.
type genlSocket struct{ fd int }

func openGenl() (netlink, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_GENERIC)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	tv := unix.NsecToTimeval(int64(netlinkTimeout))
	if err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("netlink: %w", err)
	}
	return &genlSocket{fd}, nil
}

func (s *genlSocket) close() { unix.Close(s.fd) }

func (s *genlSocket) call(request []byte) (answers [][]byte, err error) {
	err = eintr.Again(func() error { return unix.Sendto(s.fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}) })
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	seq := native.Uint32(request[8:])
	buf := make([]byte, 64<<10)
	for {
		n, from, err := unix.Recvfrom(s.fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err == unix.EAGAIN {
			return nil, rdserr.With(rdserr.ErrTimeout, "netlink: the kernel has not answered for %v", netlinkTimeout)
		}
		if err != nil {
			return nil, fmt.Errorf("netlink: %w", err)
		}
		if sa, ok := from.(*unix.SockaddrNetlink); !ok || sa.Pid != 0 {
			// Any process can send to a netlink socket.
			continue // not from the kernel
		}
		done, err := parseAnswers(buf[:n], seq, &answers)
		if done || err != nil {
			return answers, err
		}
	}
}

// parseAnswers takes one datagram apart. done: the acknowledgement, or the end
// of a dump, was in it.
func parseAnswers(b []byte, seq uint32, answers *[][]byte) (done bool, err error) {
	for len(b) >= unix.NLMSG_HDRLEN {
		n := int(native.Uint32(b))
		if n < unix.NLMSG_HDRLEN || n > len(b) {
			return false, rdserr.With(rdserr.ErrProtocol, "netlink: a message of %d bytes in a datagram with %d left", n, len(b))
		}
		body := b[unix.NLMSG_HDRLEN:n]
		// An answer to an earlier request, which has timed out, may still be in the queue.
		if native.Uint32(b[8:]) == seq {
			switch kind := native.Uint16(b[4:]); {
			case kind == unix.NLMSG_ERROR:
				if len(body) < 4 {
					return false, rdserr.With(rdserr.ErrProtocol, "netlink: an acknowledgement of %d bytes", len(body))
				}
				// The kernel's errno is negative; 0 is the acknowledgement.
				if e := int32(native.Uint32(body)); e != 0 {
					return true, unix.Errno(-e)
				}
				return true, nil
			case kind == unix.NLMSG_DONE:
				return true, nil
			case kind >= unix.NLMSG_MIN_TYPE:
				if len(body) < unix.GENL_HDRLEN {
					return false, rdserr.With(rdserr.ErrProtocol, "netlink: an answer of %d bytes", len(body))
				}
				// A copy: the buffer is read into again.
				*answers = append(*answers, bytes.Clone(body[unix.GENL_HDRLEN:]))
			}
		}
		b = b[min((n+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1), len(b)):]
	}
	return false, nil
}

// family asks for the number of a generic netlink family.
func family(nl netlink, name string) (uint16, error) {
	m := newMessage(unix.GENL_ID_CTRL, unix.CTRL_CMD_GETFAMILY, 1, unix.NLM_F_ACK)
	m.str(unix.CTRL_ATTR_FAMILY_NAME, name)
	answers, err := nl.call(m.finish(1))
	// The number is given when the driver is loaded, and the family does not exist before.
	if errors.Is(err, unix.ENOENT) {
		return 0, rdserr.With(rdserr.ErrNotSupported, "this kernel has no %s driver loaded; modprobe %s", name, name)
	}
	if err != nil {
		return 0, err
	}
	var id uint16
	for _, a := range answers {
		if err := eachAttr(a, func(kind uint16, data []byte) error {
			if kind == unix.CTRL_ATTR_FAMILY_ID && len(data) >= 2 {
				id = native.Uint16(data)
			}
			return nil
		}); err != nil {
			return 0, err
		}
	}
	if id == 0 {
		return 0, rdserr.With(rdserr.ErrProtocol, "netlink: the kernel did not tell the number of family %s", name)
	}
	return id, nil
}
