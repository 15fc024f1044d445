package processtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/shm"
)

// ofDevices are the calls of a daemon whose volumes go over RoCE and whose sockets are
// plain ones, by packets.
var ofDevices = []struct{ call, errs string }{
	{"socket", "EMFILE ENFILE ENOMEM"},
	{"bind", "EADDRINUSE ENOMEM"},
	{"setsockopt", "ENOMEM"},
	{"getsockopt", "ENOMEM"},
	{"getsockname", "ENOMEM"},
	{"sendmmsg", "ENOMEM ENOBUFS EINTR EAGAIN EPERM ENETUNREACH EMSGSIZE"},
	{"recvmmsg", "ENOMEM EINTR EAGAIN"},
	{"sendmsg", "ENOMEM ENOBUFS EINTR EPERM"},
	{"recvmsg", "ENOMEM EINTR"},
	{"sendto", "ENOMEM ENOBUFS EINTR EPERM"},
	{"recvfrom", "ENOMEM EINTR"},
	{"epoll_ctl", "ENOMEM ENOSPC"},
	{"accept4", "EMFILE ENFILE ENOMEM ECONNABORTED EINTR"},
	{"read", "EINTR"},
	{"write", "EINTR"},
}

// TestEverySystemCallOfADevice: what TestEverySystemCallWhileRunning asks, of volumes over
// RoCE in both directions and of sockets by packets.
func TestEverySystemCallOfADevice(t *testing.T) {
	t.Parallel()
	strace := mayTrace(t)
	r := newRounds(t, strace, startPairWith(t, []string{"RDSD_VOLUMES_RDMA=soft"}, fastLinks...))
	over := func(c *rdsd.Client, src, dst, name string) func(context.Context) error {
		return func(ctx context.Context) error {
			return volumeOnce(ctx, c, rdsd.MapSpec{Node: dst, Name: name, ID: "m", Session: "roce-" + name, Paths: []rdsd.PathSpec{{Src: src, Dst: dst, Transport: rdsd.TransportIB}}})
		}
	}
	r.warm([]step{
		{"packets", func(ctx context.Context) error { return usePackets(ctx, filepath.Join(r.p.dirA, "s"), addrA) }},
		{"map", over(r.a, addrA, addrB, "disk")},
		{"store", over(r.b, addrB, addrA, "kept")},
	})
	for _, x := range ofDevices {
		for _, e := range strings.Fields(x.errs) {
			r.inject(x.call, e)
		}
	}
	ends(t, r.p.a)
}

// usePackets binds a plain socket of the ring control socket, without rings, and sends a datagram
// to itself.
func usePackets(ctx context.Context, socket, at string) error {
	var d net.Dialer
	u, err := d.DialContext(ctx, "unixpacket", socket+shm.SocketSuffix)
	if err != nil {
		return err
	}
	defer u.Close()
	until, _ := ctx.Deadline()
	u.SetDeadline(until)
	c := shm.NewConn(u.(*net.UnixConn), 0)
	defer c.Done()
	say := func(m *rdsdv1.ClientMessage) error {
		b, err := proto.Marshal(m)
		if err == nil {
			err = c.WriteMessage(b)
		}
		return err
	}
	// next waits for a message of a kind, past others.
	next := func(want func(*rdsdv1.ServerMessage) bool) (*rdsdv1.ServerMessage, error) {
		for {
			b, _, err := c.ReadMessage()
			if err != nil {
				return nil, err
			}
			m := &rdsdv1.ServerMessage{}
			if err := proto.Unmarshal(b, m); err != nil {
				return nil, err
			}
			if m.HasClosing() {
				return nil, fmt.Errorf("closing: %v", m.GetClosing())
			}
			if want(m) {
				return m, nil
			}
		}
	}
	local := &rdsdv1.Endpoint{}
	local.SetAddress(netip.MustParseAddr(at).AsSlice())
	bind, m := &rdsdv1.Bind{}, &rdsdv1.ClientMessage{}
	bind.SetLocal(local)
	bind.SetInitialCreditDatagrams(4)
	bind.SetInitialCreditBytes(1 << 16)
	m.SetBind(bind)
	if err := say(m); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	bound, err := next((*rdsdv1.ServerMessage).HasBound)
	if err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	send := &rdsdv1.SendBatch{}
	send.SetId(1)
	send.SetPayload([]byte("x"))
	send.SetLength([]uint32{1})
	send.SetDestination([]*rdsdv1.Endpoint{bound.GetBound().GetLocal()})
	m.SetSend(send)
	if err := say(m); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	got, err := next((*rdsdv1.ServerMessage).HasRecv)
	if err == nil && string(got.GetRecv().GetPayload()) != "x" {
		err = errors.New("another datagram came than was sent")
	}
	return err
}
