package kernelpeer

import (
	"context"
	"net/netip"
	"slices"

	"github.com/rdsd/rdsd/transport"
)

// Volumes returns p with the marks taken out by which two rdsd know each other
// (docs/protocol.md, "Between two rdsd"): whoever dials through it is a kernel's client to the
// other end of RTRS, and has a kernel's server there.
func Volumes(p transport.OneSidedProvider) transport.OneSidedProvider { return unmarked{p} }

type unmarked struct{ transport.OneSidedProvider }

// Where the marks are, and which bits of the bytes there (CON_REQ, CON_RSP).
const (
	reqMarkAt, reqMark = 44, 2
	rspMarkAt, rspMark = 16, 4
)

func (u unmarked) DialOneSided(ctx context.Context, local, remote netip.AddrPort, d transport.Domain, attr transport.LinkAttr, private []byte) (transport.OneSided, []byte, error) {
	private = slices.Clone(private)
	if len(private) > reqMarkAt {
		private[reqMarkAt] &^= reqMark
	}
	l, rsp, err := u.OneSidedProvider.DialOneSided(ctx, local, remote, d, attr, private)
	if rsp = slices.Clone(rsp); len(rsp) > rspMarkAt {
		rsp[rspMarkAt] &^= rspMark
	}
	return l, rsp, err
}
