package conn

import (
	"errors"

	"github.com/rdsd/rdsd/wire"
)

// may says what a peer may do, and what is done for it, by its kind and by whether kernels
// may be peers at its address (mayTable). A kernel cannot prove its identity, and
// everything that does not shake hands as an rdsd counts as a kernel: where kernels are not
// allowed, nothing is taken from a peer, and nothing but our handshake is sent to it,
// before it has shown its kind.
type may struct {
	name  string
	place bool // its datagrams and answers to our pings are placed
	ask   bool // its pings are answered
	tell  bool // its congestion map is believed
	hear  bool // our congestion map is sent to it
	get   bool // datagrams are sent to it, once it is known
	mute  bool // also when it does not answer our handshake
	rdsd  bool // the parts that only an rdsd sends are understood: control messages, acknowledgements, credits, trains
}

// Rows of mayTable.
const (
	mayNothing = iota // kernels are not allowed, and it has not shown that it is an rdsd
	mayGuess          // kernels are allowed, and it may be one
	mayRdsd
	mayKernel
	mayRows
)

var mayTable = [mayRows]may{
	mayNothing: {name: "unknown, or a kernel where none is allowed"},
	mayGuess:   {name: "unknown, where kernels are allowed", place: true, ask: true, tell: true, hear: true, mute: true},
	mayRdsd:    {name: "rdsd", place: true, ask: true, tell: true, hear: true, get: true, rdsd: true},
	mayKernel:  {name: "kernel, where kernels are allowed", place: true, ask: true, tell: true, hear: true, get: true, mute: true},
}

// may is the row for the peer as far as it is known now.
func (c *Conn) may() *may {
	switch {
	case c.kind == KindRdsd:
		return &mayTable[mayRdsd]
	case !c.kernels:
		return &mayTable[mayNothing]
	case c.kind == KindUnknown:
		return &mayTable[mayGuess]
	}
	return &mayTable[mayKernel]
}

// allow asks again whether the peer may be a kernel: at the beginning of each
// link, for rules change.
func (c *Conn) allow() { c.kernels = c.com.AllowKernel(c.remote) }

// MayBeKernel reports whether the peer is a kernel, or has not shown yet what it is and came when a
// kernel was allowed: its link is one that a kernel may have.
func (c *Conn) MayBeKernel() bool {
	return c.kind.kernel() || c.kind == KindUnknown && c.kernels
}

var errUnidentified = errors.New("it sends before it has identified itself, as only a kernel would, and kernel peers are not allowed at this address")

// takes reports whether the peer may send frames of a kind. A handshake shows what kind of
// peer it is.
func (m *may) takes(k wire.Kind) bool {
	switch k {
	case wire.KindProbe, wire.KindProbeReply:
		return true
	case wire.KindCongMap:
		return m.tell
	case wire.KindPing:
		return m.ask
	case wire.KindControl, wire.KindAckOnly:
		return m.rdsd
	}
	return m.place // data, pongs, and null, which counts in their sequence
}

// MayTable returns the table as rows of text for the documentation: the peer,
// then yes or no for each column.
func MayTable() (rows [][]string) {
	for i := range mayTable {
		m := &mayTable[i]
		row := []string{m.name}
		for _, b := range []bool{m.place, m.ask, m.tell, m.hear, m.get, m.mute, m.rdsd} {
			row = append(row, map[bool]string{true: "yes", false: "no"}[b])
		}
		rows = append(rows, row)
	}
	return rows
}
