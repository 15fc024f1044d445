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

	// trainJoined in the byte behind the form: see Train.Joined. The other bits are ignored.
	trainJoined = 1
)

// Train is a run of datagrams of one flow under one header, from the memory of the client
// that sends it to that of the client that reads it.
//
// Without Table all Count datagrams are len(Body)/Count bytes long, one behind the other.
// With Table Body begins with Count lengths, big-endian uint32, and the payloads follow; a
// length is read once, and counts as the smaller of the entry and the bytes that are left,
// so that no table is an error: a sender that writes nonsense changes the meaning of its
// own datagrams only.
//
// Count 1 without Table is a plain datagram (One).
//
// With Reversed, which only a train with a Table has and which no frame knows, the lengths
// stand in Body from the last to the first: so the table has room to grow downwards while the
// payloads behind it grow upwards. PutTable turns it round.
//
// Joined says that the sending node has made it of messages that it can also send apart, if
// there is no room for all.
type Train struct {
	Body     []byte
	Count    int
	Table    bool
	Reversed bool
	Joined   bool
}

// One is a plain datagram.
func One(payload []byte) Train { return Train{Body: payload, Count: 1} }

// Plain reports whether t is one datagram and no more: it needs no extension.
func (t Train) Plain() bool { return t.Count == 1 && !t.Table }

// PayloadBytes is the size of Body without the table.
func (t Train) PayloadBytes() int {
	if t.Table {
		return len(t.Body) - t.Count*TableEntry
	}
	return len(t.Body)
}

// PutTable writes the table in the order of a frame into to, which has Count*TableEntry bytes.
// Each entry is read once.
func (t Train) PutTable(to []byte) {
	table := t.Body[:len(to)]
	if !t.Reversed {
		copy(to, table)
		return
	}
	for at := len(table) - TableEntry; at >= 0; at -= TableEntry {
		copy(to[len(to)-TableEntry-at:][:TableEntry], table[at:])
	}
}

// PutBody writes the body as a frame has it into to, which has the length of Body.
func (t Train) PutBody(to []byte) {
	if !t.Reversed {
		copy(to, t.Body)
		return
	}
	n := t.Count * TableEntry
	t.PutTable(to[:n])
	copy(to[n:], t.Body[n:])
}

// ErrTrain is returned for a train extension that does not fit its frame.
var ErrTrain = errors.New("wire: malformed train")

// Ext is the extension space of a frame that carries the train.
func (t Train) Ext() (e [ExtLen]byte) {
	e[0] = ExtTrain
	binary.BigEndian.PutUint16(e[1:], uint16(t.Count))
	if t.Table {
		e[3] = trainTable
	}
	if t.Joined {
		e[4] = trainJoined
	}
	return e
}

// ParseTrain reads the train extension of a data frame whose payload is body; without one
// the frame is a plain datagram. Lengths in a table are not looked at: none of them is an
// error, see Cutter.
func ParseTrain(e *[ExtLen]byte, body []byte) (t Train, err error) {
	if e[0] != ExtTrain {
		return One(body), nil
	}
	t = Train{Body: body, Count: int(binary.BigEndian.Uint16(e[1:])), Table: e[3] == trainTable, Joined: e[4]&trainJoined != 0}
	if e[3] > trainTable || t.Count == 0 || t.Count > MaxTrain || len(body) > MaxTrainBytes ||
		t.Table && len(body) < t.Count*TableEntry || !t.Table && len(body)%t.Count != 0 {
		return Train{}, ErrTrain
	}
	return t, nil
}

// TrainCount is how many datagrams a message says that it has whose body nobody has.
func TrainCount(e *[ExtLen]byte) int {
	if e[0] != ExtTrain {
		return 1
	}
	return min(max(int(binary.BigEndian.Uint16(e[1:])), 1), MaxTrain)
}

// Cutter takes the datagrams of a train one by one. Every length of a table is read once,
// and counts as the smaller of the entry and the bytes left: the table may lie in memory
// that its writer still changes.
type Cutter struct {
	table, rest []byte
	size, left  int
	reversed    bool
}

// Cut begins to take the datagrams of the train one by one.
func (t Train) Cut() Cutter {
	if n := t.Count * TableEntry; t.Table {
		return Cutter{table: t.Body[:n], rest: t.Body[n:], left: t.Count, reversed: t.Reversed}
	}
	return Cutter{rest: t.Body, size: len(t.Body) / max(t.Count, 1), left: t.Count}
}

// Left is how many datagrams are still to come.
func (c *Cutter) Left() int { return c.left }

// next is the length of the next datagram, in bytes; called once for each.
func (c *Cutter) next() int {
	if c.table == nil {
		return c.size
	}
	var n uint32
	if end := len(c.table) - TableEntry; c.reversed {
		n, c.table = binary.BigEndian.Uint32(c.table[end:]), c.table[:end]
	} else {
		n, c.table = binary.BigEndian.Uint32(c.table), c.table[TableEntry:]
	}
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
