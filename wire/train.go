package wire

import (
	"encoding/binary"
	"errors"
)

// A train is several datagrams of one flow in one data frame, under one
// sequence. Only an rdsd that announced CapTrains is sent one.
const (
	// ExtTrain, first in the extension space of a data frame: the payload is a
	// train. It is followed by the number of datagrams (2 bytes) and the form.
	ExtTrain = 0xd6

	MaxTrain      = 4096     // datagrams
	MaxTrainBytes = 64 << 10 // payload of the frame, a table included
	TableEntry    = 4        // bytes of one length of a table
)

// Forms of a train.
const (
	trainUniform = 0 // all datagrams equally long, one behind the other
	trainTable   = 1 // their lengths, 4 bytes each, then the datagrams
)

// Train describes the payload of a data frame. Count is 0 for one datagram, which is no
// train.
type Train struct {
	Count uint16
	Table bool
}

// ErrTrain is returned for a train extension that does not fit its frame.
var ErrTrain = errors.New("wire: malformed train")

// Ext is the extension space of a frame that carries the train.
func (t Train) Ext() (e [ExtLen]byte) {
	e[0] = ExtTrain
	binary.BigEndian.PutUint16(e[1:], t.Count)
	if t.Table {
		e[3] = trainTable
	}
	return e
}

// ParseTrain reads the train extension of a data frame with n bytes of
// payload; without one it returns the zero Train. Lengths in a table are not
// looked at: none of them is an error, see Cutter.
func ParseTrain(e *[ExtLen]byte, n int) (t Train, err error) {
	if e[0] != ExtTrain {
		return t, nil
	}
	t.Count, t.Table = binary.BigEndian.Uint16(e[1:]), e[3] == trainTable
	count := int(t.Count)
	if e[3] > trainTable || count == 0 || count > MaxTrain || n > MaxTrainBytes ||
		t.Table && n < count*TableEntry || !t.Table && n%count != 0 {
		return Train{}, ErrTrain
	}
	return t, nil
}

// Cutter takes the datagrams of a train one by one. Every length of a table is read once,
// and counts as the smaller of the entry and the bytes left: the table may lie in memory
// that its writer still changes.
type Cutter struct {
	table, rest []byte
	size, left  int
}

// Cut begins at the first of count datagrams in body.
func Cut(body []byte, count int, table bool) Cutter {
	if table {
		return Cutter{table: body[:count*TableEntry], rest: body[count*TableEntry:], left: count}
	}
	return Cutter{rest: body, size: len(body) / max(count, 1), left: count}
}

// Left is how many datagrams are still to come.
func (c *Cutter) Left() int { return c.left }

// next is the length of the next datagram, in bytes; called once for each.
func (c *Cutter) next() int {
	if c.table == nil {
		return c.size
	}
	n := binary.BigEndian.Uint32(c.table)
	c.table = c.table[TableEntry:]
	return int(min(uint64(n), uint64(len(c.rest))))
}

// Rest returns the bytes behind the datagrams taken so far, without the table.
func (c *Cutter) Rest() []byte { return c.rest }

// Peek returns the length of the next datagram, in bytes, 0 behind the last. It is for
// memory without another writer.
func (c *Cutter) Peek() int {
	if c.left == 0 {
		return 0
	}
	t := *c
	return t.next()
}

// Next takes the next datagram; ok is false behind the last.
func (c *Cutter) Next() (p []byte, ok bool) {
	if c.left == 0 {
		return nil, false
	}
	n := c.next()
	c.left--
	p, c.rest = c.rest[:n:n], c.rest[n:]
	return p, true
}
