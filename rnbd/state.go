package rnbd

import (
	"fmt"
	"time"

	"github.com/rdsd/rdsd/rtrs"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

// The life of a mapped volume:
//
//	           OPEN answered             no path left, taken away
//	   Init -----------------> Open --------------------------------> Closed
//	    |                      |  ^                                   |   |
//	    |                      |  +-----------------------------------+   |
//	    |                      |       OPEN answered: it is as it was     |
//	    | refused, unmapped    | unmapped                                 | unmapped
//	    v                      v                                          v
//	    +------------------> Unmapped <-----------------------------------+
//
// How requests fare:
//
//	Init      They are refused: the volume's properties are not known yet.
//	Open      They run, once every volume of the session was asked for in its
//	          present generation (Client.tryResume).
//	Closed    They wait: with the session until its requests run again, then here,
//	          held. Closed for good (failed) they fail, until Remap.
//	Unmapped  They are refused, and those with the session end.
//
// The messages about the volume that go to the server stand in duties; one is under way at
// a time.

// State is where a mapped volume stands, in the kernel's words.
type State uint8

// States of a volume.
const (
	Init     State = iota // has not been open yet
	Open                  // requests are carried out
	Closed                // no path, or the server does not have it; opened again by itself unless Err is final
	Unmapped              // on its way out
	numStates
)

var stateNames = [numStates]string{"init", "open", "closed", "unmapped"}

func (s State) String() string {
	if s < numStates {
		return stateNames[s]
	}
	return "unknown"
}

// transition is a change of state, and when it happens.
type transition struct {
	from, to State
	when     string
}

// volumeTable is the whole life of a volume. A move that is not there does not happen.
var volumeTable = []transition{
	{Init, Open, "the server has opened it"},
	{Init, Closed, "the server has opened it, and it is not what an earlier process had"},
	{Init, Unmapped, "the server refuses it; unmapped"},
	{Open, Closed, "the session has no path any more; the server has taken the volume from it"},
	{Open, Unmapped, "unmapped"},
	{Closed, Open, "the server has opened it anew, and it is as it was, or Remap takes it as it is"},
	{Closed, Unmapped, "unmapped"},
}

var volumeMay = func() (may [numStates][numStates]bool) {
	for _, t := range volumeTable {
		may[t.from][t.to] = true
	}
	return may
}()

// setState is the one place where a volume's state changes.
func (v *Volume) setState(now time.Duration, to State) {
	if !volumeMay[v.state][to] {
		panic(fmt.Sprintf("volume %q is %v and becomes %v", v.name, v.state, to))
	}
	v.state, v.since = to, now
}

// become changes the state and tells of it.
func (v *Volume) become(now time.Duration, to State, why error) {
	from := v.state
	v.setState(now, to)
	v.c.env.Event(ClientEvent{Kind: VolumeState, Volume: v, From: from, To: to, Err: why})
}

// duty is an action about a volume at its server: a message, or the end.
type duty struct {
	name string // of the message; "-" is the end
	when string
	due  func(v *Volume, now time.Duration) bool
	do   func(v *Volume, now time.Duration)
}

// duties are those of each state. The first that is due is done.
var duties [numStates][]duty

func init() {
	opens := duty{"OPEN", "not asked for in this life of the session, or RetryEvery ago; not when closed for good",
		func(v *Volume, now time.Duration) bool {
			return v.mayAsk() && v.failed == nil && (v.openSentIn != v.c.generation || now >= v.retryAt)
		}, (*Volume).sendOpen}
	asks := duty{"INFO", "AskEvery after the last, to an rdsd",
		func(v *Volume, now time.Duration) bool {
			return v.mayAsk() && now >= v.askAt && v.c.features&rnbdwire.FeatInfo != 0
		}, (*Volume).sendInfo}
	// A kernel answers OPEN of a volume that the session has open with what it is like now
	// (drivers/block/rnbd/rnbd-srv.c, process_msg_open). It is not asked in turns, because it
	// takes the volume's size for what a file system was made for.
	again := duty{"OPEN", "Ask was called, and the server is a kernel",
		func(v *Volume, _ time.Duration) bool {
			return v.mayAsk() && v.asked && v.c.features&rnbdwire.FeatInfo == 0
		}, (*Volume).sendOpen}
	// Otherwise the server would keep a volume open that is no longer used here. Requests
	// go first: one behind a CLOSE would be answered as an error.
	releases := duty{"CLOSE", "closed for good, and that is written down if it is for another's writes; the server has it open, and no request is with the session",
		func(v *Volume, _ time.Duration) bool {
			return v.mayAsk() && v.failed != nil && !v.noting && v.openAtServer && v.inflight == 0
		}, (*Volume).sendClose}
	// Without a path the server cannot be told, and closes its open volumes with the
	// session.
	finishes := duty{"-", "no request is with the session, and the server does not have it open or cannot be told",
		func(v *Volume, _ time.Duration) bool { return v.empty() && (!v.openAtServer || !v.c.up) },
		(*Volume).finish}
	closes := duty{"CLOSE", "no request is with the session",
		func(v *Volume, _ time.Duration) bool { return v.mayAsk() && v.empty() },
		(*Volume).sendClose}

	duties = [numStates][]duty{
		Init:     {opens},
		Open:     {asks, again},
		Closed:   {releases, opens},
		Unmapped: {finishes, closes},
	}
}

// pump carries out the duty about the volume that is due, if there is one.
func (v *Volume) pump(now time.Duration) {
	for i := range duties[v.state] {
		if d := &duties[v.state][i]; d.due(v, now) {
			d.do(v, now)
			return
		}
	}
}

// mayAsk reports whether a message about the volume may go: SESS_INFO is answered in this
// generation of the session, and so is the last message.
func (v *Volume) mayAsk() bool { return !v.admin.busy && v.c.introduced }

// empty reports whether nothing of the volume is under way that its end would overtake. An
// unanswered OPEN counts: otherwise the server would have the volume open and no CLOSE
// would follow. While Unmap walks the requests of the session (ending), each that ends
// comes here, and the volume must not end under that walk.
func (v *Volume) empty() bool { return v.inflight == 0 && !v.ending && !v.opening() }

// opening reports whether an OPEN is not answered yet.
func (v *Volume) opening() bool { return v.admin.busy && v.admin.kind == rnbdwire.OpenType }

func (v *Volume) sendOpen(now time.Duration) {
	c, a := v.c, &v.admin
	v.openSentIn, v.asked, v.askErr = c.generation, false, nil
	// What has come since Remap is not to go over what others write until a later OPEN succeeds.
	v.acceptAny = v.acceptAny && !v.waits()
	a.kind = rnbdwire.OpenType
	usr, _ := (&rnbdwire.Open{Access: v.access, Name: v.name}).Append(a.usr[:0]) // Map has looked
	c.send(now, a, rtrs.Read, usr, a.rsp[:])
}

func (v *Volume) sendInfo(now time.Duration) {
	c, a := v.c, &v.admin
	v.askAt, v.asked, v.askErr = v.askFrom(now), false, nil
	a.kind = rnbdwire.InfoType
	c.send(now, a, rtrs.Read, rnbdwire.AppendInfo(a.usr[:0], v.id), a.rsp[:])
}

func (v *Volume) sendClose(now time.Duration) {
	a := &v.admin
	// The server either closes it or does not have it, whatever it answers.
	v.openAtServer = false
	a.kind = rnbdwire.CloseType
	v.c.send(now, a, rtrs.Write, rnbdwire.AppendClose(a.usr[:0], v.id), nil)
	if v.state == Unmapped && v.force {
		// A forced unmap does not wait for a server that may never answer.
		v.finish(now)
	}
}
