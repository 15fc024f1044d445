package rdsd

import (
	"context"
	"net/netip"

	"google.golang.org/grpc"

	"github.com/rdsd/rdsd/rdserr"
)

// Calls that cannot work, because of a fault in the program, return an error and leave nothing behind.

var (
	errNoContext = rdserr.With(rdserr.ErrInvalid, "a context is needed: nil was given")
	errNoSocket  = rdserr.With(rdserr.ErrInvalid, "this is not a socket that Client.Bind has returned")
	errNoSlot    = rdserr.With(rdserr.ErrInvalid, "this is not a slot that Socket.Reserve has returned")
	errNoClient  = rdserr.With(rdserr.ErrInvalid, "this is not a client that Dial has returned")
)

// misuse is the error of a call op for which there is no socket or no context.
func (s *Socket) misuse(ctx context.Context, op string, remote netip.AddrPort) error {
	if s != nil && s.fe != nil && ctx != nil {
		return nil
	}
	return s.misused(op, remote)
}

func (s *Socket) misused(op string, remote netip.AddrPort) error {
	if s == nil || s.fe == nil {
		return opError(op, netip.AddrPort{}, remote, errNoSocket)
	}
	return s.opErr(op, remote, errNoContext)
}

// door is a client's connection for the services beside Datagrams.
type door struct {
	conn *grpc.ClientConn // nil: the client has none
}

func (c *Client) door() grpc.ClientConnInterface {
	if c == nil {
		return door{}
	}
	return door{c.conn}
}

func (d door) misuse(ctx context.Context) error {
	switch {
	case d.conn == nil:
		return errNoClient
	case ctx == nil:
		return errNoContext
	}
	return nil
}

func (d door) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if err := d.misuse(ctx); err != nil {
		return err
	}
	return d.conn.Invoke(ctx, method, args, reply, opts...)
}

func (d door) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if err := d.misuse(ctx); err != nil {
		return nil, err
	}
	return d.conn.NewStream(ctx, desc, method, opts...)
}
