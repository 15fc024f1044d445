package client

import (
	"net/netip"

	"github.com/rdsd/rdsd/api/rdsd/v1/fastwire"
)

// parseEndpoint reads an Endpoint. Whether address and port make sense is for
// the caller to say; the raw address is kept by its length.
func parseEndpoint(p []byte) (e rawEndpoint, ok bool) {
	address, port, ok := fastwire.ParseEndpoint(p)
	if ok {
		e.port = port
		e.setAddress(address)
	}
	return e, ok
}

// rawEndpoint is an Endpoint as a client wrote it.
type rawEndpoint struct {
	addr    netip.Addr // invalid unless addrLen is 4 or 16
	addrLen int
	port    uint32
	// refused is why nothing of its batch goes there any more, from stretch since on
	// (offering); nil while something may.
	refused error
	since   uint32
}

func (e *rawEndpoint) setAddress(b []byte) {
	e.addrLen = len(b)
	e.addr, _ = netip.AddrFromSlice(b)
	e.addr = e.addr.Unmap()
}
