package rds

import (
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/wire"
)

// Limits of a train.
const (
	MaxTrain      = wire.MaxTrain      // datagrams
	MaxTrainBytes = wire.MaxTrainBytes // bytes of Body when Count > 1; one datagram: wire.MaxDatagram
)

// Train is a run of datagrams of one flow under one header.
//
// Without Table all Count datagrams are len(Body)/Count bytes long, one behind the other.
// With Table Body begins with Count lengths, big-endian uint32, and the payloads follow; a
// length is read once, and counts as the smaller of the entry and the bytes that are left,
// so that no table is an error: a sender that writes nonsense changes the meaning of its
// own datagrams only.
//
// Count 1 without Table is a plain datagram.
type Train struct {
	Body  []byte
	Count int
	Table bool
}

// PayloadBytes is the size of Body without the table.
func (t Train) PayloadBytes() int {
	if t.Table {
		return len(t.Body) - t.Count*wire.TableEntry
	}
	return len(t.Body)
}

// Cut begins to take the datagrams of the train one by one.
func (t Train) Cut() wire.Cutter { return wire.Cut(t.Body, t.Count, t.Table) }

// check returns why the train is unfit for sending, or nil; largest is the most bytes one
// datagram may have.
func (t Train) check(largest int) error {
	switch {
	case t.Count < 1 || t.Count > MaxTrain:
		return rdserr.With(rdserr.ErrInvalid, "a train of %d datagrams; want 1 to %d", t.Count, MaxTrain)
	case t.Table && len(t.Body) < t.Count*wire.TableEntry:
		return rdserr.With(rdserr.ErrInvalid, "a train of %d bytes cannot hold a table of %d lengths of 4 bytes", len(t.Body), t.Count)
	case t.Count > 1 && len(t.Body) > MaxTrainBytes:
		return rdserr.With(rdserr.ErrTooLarge, "a train of %d bytes; the largest is %d", len(t.Body), MaxTrainBytes)
	case t.Count == 1 && t.PayloadBytes() > largest:
		return rdserr.With(rdserr.ErrTooLarge, "a datagram of %d bytes; the largest for this socket is %d", t.PayloadBytes(), largest)
	case !t.Table && len(t.Body)%t.Count != 0:
		return rdserr.With(rdserr.ErrInvalid, "%d bytes are not %d datagrams of one length", len(t.Body), t.Count)
	case !t.Table && len(t.Body)/t.Count > largest:
		return rdserr.With(rdserr.ErrTooLarge, "a datagram of %d bytes; the largest for this socket is %d", len(t.Body)/t.Count, largest)
	}
	return nil
}
