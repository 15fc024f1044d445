package rds

import (
	"math"
	"slices"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/wire"
)

// The process that reads a congested port of another node, and the senders that fill it,
// are known only to that node. When an administrator here wants to see them (AskReaders)
// the other daemon is asked about the ports that hold up sockets of this node, and answers
// when it likes (docs/protocol.md, "CtlAskPorts"). A kernel is not asked, and an rdsd that
// does not know the question leaves it unanswered.

const (
	// answerEvery is the least time between two answers to one peer: looking at a
	// queue costs more than asking for it.
	answerEvery = 20 * time.Millisecond
	// answerLook bounds the datagrams that the answers to one question look at. In a long queue
	// so many show the senders that fill it as well as all of them, and so does a part of that.
	answerLook = 4096
	// answerTime is how long no peer is answered for each datagram that was looked at: much longer
	// than the look takes, because any number of peers may ask.
	answerTime = time.Microsecond
)

// AskReaders asks the peers that are another rdsd about their congested ports which
// concern sockets of this node. It returns how many answers may come (ReadersDue).
func (e *Engine) AskReaders() (due int) {
	for _, pe := range e.order {
		pe.asked = 0
		if pe.cmap.Len() == 0 || pe.c.Kind() != conn.KindRdsd {
			continue
		}
		var ports []uint16
		for port, pp := range pe.ports {
			if pe.cmap.Congested(port) && (pp.opened.n > 0 || pp.waiters.n > 0 || pp.blocked > 0) {
				ports = append(ports, port)
			}
		}
		slices.Sort(ports)
		ports = ports[:min(len(ports), wire.MaxAskedPorts)]
		if len(ports) > 0 && pe.c.Tell(wire.CtlAskPorts, wire.AppendPorts(nil, ports)) {
			pe.asked = len(ports)
			due += pe.asked
		}
	}
	return due
}

// ReadersDue is how many answers to the last AskReaders have not come.
func (e *Engine) ReadersDue() (n int) {
	for _, pe := range e.order {
		n += pe.asked
	}
	return n
}

// readerTold takes the peer's answer about one of its ports.
func (pe *Peer) readerTold(now time.Duration, payload []byte) error {
	r, err := wire.ParseReader(payload)
	if err != nil {
		return err
	}
	pe.asked = max(0, pe.asked-1)
	// A peer may tell of ports that were not asked about. Only those that concern a socket
	// here have a place to keep it.
	if pp := pe.ports[r.Port]; pp != nil {
		pp.reader, pp.readerAt = &r, now
	}
	return nil
}

// tellReaders tells the peer which process reads each of our congested ports and which
// senders fill it.
func (pe *Peer) tellReaders(now time.Duration, payload []byte) error {
	e := pe.e
	soon := now-pe.asking < answerEvery || now < e.answerAt
	if !soon {
		pe.asking = now
	}
	// Parsed also when no answer is due: a message that breaks the rules ends the link.
	var asked []*Socket // each once, however often it is named
	err := wire.ParsePorts(payload, func(port uint16) {
		if s := e.socks[port]; !soon && s != nil && s.congested && !slices.Contains(asked, s) {
			asked = append(asked, s)
		}
	})
	if err != nil || len(asked) == 0 {
		return err
	}
	left := answerLook // for all of them
	for i, s := range asked {
		r := wire.Reader{Port: s.port, UID: s.opt.UID, PID: s.opt.PID, Queued: uint64(s.queued), Label: s.opt.Label}
		culprits, looked := s.culprits(wire.MaxFillers, left/(len(asked)-i))
		left -= looked
		for _, c := range culprits {
			r.Fillers = append(r.Fillers, wire.Filler{Source: c.Source, Datagrams: uint32(min(c.N, math.MaxUint32)), Bytes: uint64(c.Bytes)})
		}
		pe.c.Tell(wire.CtlTellPort, wire.AppendReader(nil, &r))
	}
	e.answerAt = max(e.answerAt, now) + time.Duration(answerLook-left)*answerTime
	return nil
}
