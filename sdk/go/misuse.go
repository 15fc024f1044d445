package rdsd

import (
	"context"
	"net/netip"

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
