package cm

import "time"

// State is where a connection is in its life. The names are those of the kernel's ib_cm.
type State uint8

// States of a connection. Dial begins in ReqSent, a peer's REQ in ReqRcvd.
const (
	ReqSent     State = iota // the peer was asked
	ReqMRA                   // the peer was asked, and has said that its answer takes longer
	ReqRcvd                  // the peer has asked: the application has to answer
	MRASent                  // likewise, and the peer was told that it takes longer
	RepSent                  // the application has accepted: the peer has to confirm
	RepMRA                   // likewise, and the peer has said that it takes longer
	Established              // both sides know of each other
	DreqSent                 // this side has ended it: the peer has to confirm
	TimeWait                 // it has ended; its numbers are not used again yet
	Closed                   // it is no more

	numStates
)

var stateNames = [numStates]string{
	"ReqSent", "ReqMRA", "ReqRcvd", "MRASent", "RepSent", "RepMRA", "Established", "DreqSent", "TimeWait", "Closed",
}

func (s State) String() string { return stateNames[s] }

// event is something that happens to a connection.
type event uint8

// Events. A message is one of the peer's that names the connection as the peer knows it.
const (
	evREQ event = iota // the REQ that it began with, once more
	evREP
	evRTU
	evMRA
	evREJ
	evDREQ
	evDREP
	evStale      // another message shows that the peer has forgotten the connection
	evPacket     // a packet came to the queue pair
	evAccept     // calls of the application
	evReject     //
	evWait       //
	evForget     //
	evDisconnect //
	evRepeat     // it is time to send once more what is not answered
	evExpire     // the state has lasted as long as it may

	numEvents
)

var eventNames = [numEvents]string{
	"REQ again", "REP", "RTU", "MRA", "REJ", "DREQ", "DREP", "stale", "packet",
	"Accept", "Reject", "Wait", "Forget", "Disconnect", "repeat", "expire",
}

func (e event) String() string { return eventNames[e] }

type step struct {
	legal bool
	next  State
	do    func(*Conn, time.Duration) // after the state is set
	name  string
}

// table is the whole life of a connection. An empty cell is an event that the state has no
// place for: it is counted and changes nothing.
var table [numStates][numEvents]step

func init() {
	on := func(s State, e event, next State, name string, do func(*Conn, time.Duration)) {
		table[s][e] = step{true, next, do, name}
	}
	none := func(*Conn, time.Duration) {}
	ignore := func(s State, events ...event) {
		for _, e := range events {
			on(s, e, s, "-", none)
		}
	}

	for _, s := range []State{ReqSent, ReqMRA} {
		on(s, evREP, Established, "connected; RTU", (*Conn).replied)
		on(s, evMRA, ReqMRA, "wait longer", (*Conn).patience)
		on(s, evREJ, TimeWait, "refused", (*Conn).refused)
		// It accepted, and the REP was lost; now it gives up.
		on(s, evDREQ, TimeWait, "DREP; refused", (*Conn).hungUp)
		on(s, evDisconnect, TimeWait, "REJ: timeout", (*Conn).giveUp)
		on(s, evRepeat, ReqSent, "REQ", (*Conn).doAgain)
		on(s, evExpire, TimeWait, "REJ: timeout; refused", (*Conn).expireReq)
		ignore(s, evPacket)
	}
	for _, s := range []State{ReqRcvd, MRASent} {
		// A kernel that is not answered asks again, and is then told to wait
		// (IB_CM_MRA_FLAG_DELAY): an answer that comes soon needs no MRA.
		on(s, evREQ, MRASent, "MRA", (*Conn).wait)
		on(s, evWait, MRASent, "MRA", (*Conn).wait)
		on(s, evAccept, RepSent, "REP", (*Conn).accept)
		on(s, evReject, TimeWait, "REJ: consumer", (*Conn).reject)
		on(s, evDisconnect, TimeWait, "REJ: consumer", (*Conn).reject)
		on(s, evREJ, TimeWait, "refused", (*Conn).refused)
		on(s, evStale, TimeWait, "refused", (*Conn).forgotten)
		on(s, evExpire, TimeWait, "REJ: timeout; refused", (*Conn).expireAsked)
		ignore(s, evPacket)
	}
	// Not once the peer was told to wait, for it would.
	on(ReqRcvd, evForget, Closed, "released", (*Conn).forget)
	for _, s := range []State{RepSent, RepMRA} {
		on(s, evREQ, s, "REP", (*Conn).acceptAgain)
		on(s, evRTU, Established, "connected", (*Conn).established)
		// The peer sends when it has the REP: its RTU was lost, or is behind the packet.
		on(s, evPacket, Established, "connected", (*Conn).established)
		on(s, evMRA, RepMRA, "wait longer", (*Conn).patience)
		on(s, evREJ, TimeWait, "refused", (*Conn).refused)
		on(s, evDREQ, TimeWait, "DREP; refused", (*Conn).hungUp)
		// Not REJ: that would be lost for good, and the peer may be connected.
		on(s, evDisconnect, DreqSent, "DREQ", (*Conn).disconnect)
		on(s, evStale, DreqSent, "DREQ; refused", (*Conn).forgottenDREQ)
		on(s, evRepeat, RepSent, "REP", (*Conn).doAgain)
		on(s, evExpire, TimeWait, "REJ: timeout; refused", (*Conn).expireRep)
	}

	// The peer has not seen the RTU.
	on(Established, evREP, Established, "RTU", (*Conn).confirm)
	on(Established, evREJ, TimeWait, "disconnected", (*Conn).endedByPeer)
	on(Established, evDREQ, TimeWait, "DREP; disconnected", (*Conn).hungUp)
	on(Established, evDisconnect, DreqSent, "DREQ", (*Conn).disconnect)
	on(Established, evStale, DreqSent, "DREQ; disconnected", (*Conn).forgottenDREQ)
	ignore(Established, evREQ, evRTU, evMRA, evPacket)

	on(DreqSent, evDREP, TimeWait, "disconnected", (*Conn).confirmed)
	// Both have ended it at once: each answers the other, and needs no answer any more.
	on(DreqSent, evDREQ, TimeWait, "DREP; disconnected", (*Conn).crossed)
	on(DreqSent, evREJ, TimeWait, "disconnected", (*Conn).confirmed)
	on(DreqSent, evRepeat, DreqSent, "DREQ", (*Conn).doAgain)
	on(DreqSent, evExpire, TimeWait, "disconnected", (*Conn).silent)
	ignore(DreqSent, evREQ, evREP, evRTU, evMRA, evPacket, evDisconnect)

	// What ended is not begun by a message that comes late.
	on(TimeWait, evREQ, TimeWait, "REJ as before, or: stale", (*Conn).refuseAgain)
	on(TimeWait, evREP, TimeWait, "REJ: stale", (*Conn).refuseRep)
	on(TimeWait, evDREQ, TimeWait, "DREP", (*Conn).drepAgain)
	on(TimeWait, evExpire, Closed, "released", (*Conn).release)
	ignore(TimeWait, evRTU, evMRA, evREJ, evDREP, evPacket, evDisconnect)

	ignore(Closed, evPacket, evDisconnect)
}

// event is the one place where a connection's state changes. It reports whether the state has
// a place for e.
func (c *Conn) event(now time.Duration, e event) bool {
	s := &table[c.state][e]
	if !s.legal {
		c.m.stats.Illegal++
		return false
	}
	if c.state != s.next {
		c.state, c.since = s.next, now
		c.enter(now)
	}
	s.do(c, now)
	return true
}

// Table returns the state table as rows of text (state, event, next state, action) for the
// documentation. States whose rows are the same share them.
func Table() (rows [][4]string) {
	for s := range numStates {
		for e := range numEvents {
			if c := table[s][e]; c.legal {
				rows = append(rows, [4]string{s.String(), e.String(), c.next.String(), c.name})
			}
		}
	}
	return rows
}
