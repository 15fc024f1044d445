package rds

import (
	"math"
	"slices"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/wire"
)

// The process that reads a congested port of another node, and the senders that fill it,
// are known only to that node. When an administrator here wants to see them, and every few
// seconds (AskReaders), the other daemon is asked about the ports that hold up sockets of this
// node, and answers when it likes (docs/protocol.md, "CtlAskPorts"). A kernel is not asked, and
// an rdsd that does not know the question leaves it unanswered.

const (
	// askLook bounds the peers and ports that are looked at for questions with the lock held, except
	// that the last peer has its question.
	askLook = 1024
	// readerFor is how long an answer is shown: who filled a port may not be who fills it.
	readerFor = 30 * time.Second
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

// AskReaders asks those of l that are another rdsd about their congested ports which concern
// sockets of this node, and forgets what was asked before. It returns how many answers may come
// (ReadersDue), and how many of l, at least one, it has come to: it ends after about
// askLook peers and ports.
func (e *Engine) AskReaders(l []*Peer) (due, n int) {
	for cost := 0; n < len(l) && cost < askLook; n++ {
		pe := l[n]
		e.asked -= int(pe.asked)
		pe.asked = 0
		cost++
		if pe.cmap.Len() == 0 || pe.c.Kind() != conn.KindRdsd || e.peers[pe.addr] != pe {
			continue
		}
		ports, looks := pe.portsToAsk()
		cost += looks
		if len(ports) > 0 && pe.c.Tell(wire.CtlAskPorts, wire.AppendPorts(nil, ports)) {
			pe.askFrom = ports[len(ports)-1] + 1
			pe.asked = uint16(len(ports))
			e.asked += len(ports)
			due += len(ports)
		}
	}
	return due, n
}

// portsToAsk is what the next question is about, and how many ports were looked at for it. A question
// has few ports, so each goes on where the last one ended.
func (pe *Peer) portsToAsk() (ports []uint16, looks int) {
	concerns := func(pp *peerPort) bool { return pp != nil && (pp.opened.n > 0 || pp.waiters.n > 0 || pp.blocked > 0) }
	if len(pe.ports) <= askLook {
		for port, pp := range pe.ports {
			if pe.cmap.Congested(port) && concerns(pp) {
				ports = append(ports, port)
			}
		}
		slices.Sort(ports)
		k, _ := slices.BinarySearch(ports, pe.askFrom)
		ports = append(ports[k:], ports[:k]...)
		return ports[:min(len(ports), wire.MaxAskedPorts)], len(pe.ports)
	}
	// A table of so many is not walked. The map has an order, and a walk in it can stop anywhere.
	for from := pe.askFrom; looks < min(askLook, pe.cmap.Len()) && len(ports) < wire.MaxAskedPorts; looks++ {
		port, ok := pe.cmap.Next(int(from))
		if !ok {
			port, _ = pe.cmap.Next(0)
		}
		from = port + 1
		if concerns(pe.ports[port]) {
			ports = append(ports, port)
		} else if len(ports) == 0 {
			pe.askFrom = from
		}
	}
	return ports, looks
}

// ReadersDue is how many answers to the last questions have not come.
func (e *Engine) ReadersDue() int { return e.asked }

// readerTold takes the peer's answer about one of its ports.
func (pe *Peer) readerTold(now time.Duration, payload []byte) error {
	r, err := wire.ParseReader(payload)
	if err != nil {
		return err
	}
	if pe.asked > 0 {
		pe.asked--
		pe.e.asked--
	}
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
		r := wire.Reader{Port: s.port, UID: s.opt.UID, PID: s.opt.PID, Queued: uint64(s.queued + s.paired.Bytes), Label: s.opt.Label}
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
