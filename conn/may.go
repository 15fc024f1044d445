package conn

import (
	"errors"

	"github.com/rdsd/rdsd/wire"
)

// may is what a peer may do, and what is done for it, by its kind and by whether
// kernels may be peers at its address (mayTable). Kernels cannot prove who they
// are, and a kernel is everything that does not shake hands as an rdsd: where
// they are not allowed nothing is taken from a peer, and nothing sent to it but
// our handshake, before it has shown what it is.
type may struct {
	name  string
	place bool // its datagrams and answers to our pings are placed
	ask   bool // its pings are answered
	tell  bool // its congestion map is believed
	hear  bool // ours is told to it
	get   bool // datagrams are sent to it, once it is known
	mute  bool // also when it does not answer our handshake
	rdsd  bool // what only an rdsd says is understood: control messages, acknowledgements, credits, trains
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
func (c *Conn) allow() { c.kernels = c.owner.AllowKernel() }

var errUnidentified = errors.New("it sends before it has identified itself, as only a kernel would, and kernel peers are not allowed at this address")

// takes reports whether the peer may send frames of a kind. Handshakes are how
// it shows what it is.
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
