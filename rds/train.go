package rds

import (
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/wire"
)

// checkTrain returns why t is unfit for sending, or nil; largest is the most bytes one
// datagram may have.
func checkTrain(t wire.Train, largest int) error {
	switch {
	case t.Count < 1 || t.Count > wire.MaxTrain:
		return rdserr.With(rdserr.ErrInvalid, "a train of %d datagrams; want 1 to %d", t.Count, wire.MaxTrain)
	case t.Table && len(t.Body) < t.Count*wire.TableEntry:
		return rdserr.With(rdserr.ErrInvalid, "a train of %d bytes cannot hold a table of %d lengths of 4 bytes", len(t.Body), t.Count)
	case t.Count > 1 && len(t.Body) > wire.MaxTrainBytes:
		return rdserr.With(rdserr.ErrTooLarge, "a train of %d bytes; the largest is %d", len(t.Body), wire.MaxTrainBytes)
	case t.Count == 1 && t.PayloadBytes() > largest:
		return rdserr.With(rdserr.ErrTooLarge, "a datagram of %d bytes; the largest for this socket is %d", t.PayloadBytes(), largest)
	case !t.Table && len(t.Body)%t.Count != 0:
		return rdserr.With(rdserr.ErrInvalid, "%d bytes are not %d datagrams of one length", len(t.Body), t.Count)
	case !t.Table && len(t.Body)/t.Count > largest:
		return rdserr.With(rdserr.ErrTooLarge, "a datagram of %d bytes; the largest for this socket is %d", len(t.Body)/t.Count, largest)
	}
	return nil
}

// msgCount is conn.Msg.Count of the message that carries t.
func msgCount(t wire.Train) int {
	if t.Count == 1 {
		return 0
	}
	return t.Count
}

// oneDatagram is the only datagram of a train of one, without the table it may have.
func oneDatagram(t wire.Train) []byte {
	c := t.Cut()
	p, _ := c.Next()
	return p
}
