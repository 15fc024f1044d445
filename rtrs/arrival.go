package rtrs

import rtrswire "github.com/rdsd/rdsd/wire/rtrs"

// arrival is what comes from the peer over a path's links: a message, an immediate, or the
// end of a key.
type arrival uint8

// Arrivals.
const (
	someInfoReq arrival = iota
	someInfoRsp
	someFence
	someFenced
	someRefused
	someRest
	someRested
	someWake
	someRequest
	someAnswer
	someBeat
	someBeatAck
	someRevoked
	someOther // a message of another type
	numArrivals
)

var arrivalNames = [numArrivals]string{"INFO_REQ", "INFO_RSP", "FENCE", "FENCED", "REFUSED", "REST", "RESTED", "WAKE",
	"IO_REQ", "IO_RSP", "HB_MSG", "HB_ACK", "the end of a key", "another message"}

func (a arrival) String() string { return arrivalNames[a] }

// arrivalOf is what a message of type t is.
func arrivalOf(t rtrswire.Type) arrival {
	switch t {
	case rtrswire.InfoReqType:
		return someInfoReq
	case rtrswire.InfoRspType:
		return someInfoRsp
	case rtrswire.FenceType:
		return someFence
	case rtrswire.FencedType:
		return someFenced
	case rtrswire.RefusedType:
		return someRefused
	case rtrswire.RestType:
		return someRest
	case rtrswire.RestedType:
		return someRested
	case rtrswire.WakeType:
		return someWake
	}
	return someOther
}

// taking is an arrival that is taken in a state, and what becomes of it.
type taking struct {
	in   State
	what arrival
	does string
}

// clientTakings is everything that a client's path takes, serverTakings a server's. What is
// not there breaks the protocol and ends the path; but an immediate of an unknown kind is ignored,
// and so is all that comes to a path whose links are being closed, or are. docs/protocol.md
// has both.
var clientTakings = []taking{
	{Connecting, someInfoRsp, "it is connected"},
	{Connecting, someRefused, "it is given up; for ESTALE the session is"},
	{Connecting, someBeat, "answered"},
	{Connecting, someBeatAck, "nothing"},
	{Connecting, someRevoked, "kept for the answer behind it"},
	{Connected, someAnswer, "its request is done"},
	{Connected, someFenced, "what was sent on the path it names is sent again"},
	{Connected, someRefused, "it is given up; for ESTALE the session is"},
	{Connected, someRest, "answered, and nothing is sent until WAKE, or EBUSY"},
	{Connected, someWake, "requests are sent again"},
	{Connected, someBeat, "answered"},
	{Connected, someBeatAck, "the latency is known"},
	{Connected, someRevoked, "kept for the answer behind it"},
}

var serverTakings = []taking{
	{Connecting, someInfoReq, "it waits for older epochs and for a former session of the name; only when all its connections are made"},
	{Connecting, someBeat, "answered"},
	{Connecting, someBeatAck, "nothing"},
	{Fencing, someBeat, "answered"},
	{Fencing, someBeatAck, "its client lives, and may take a name over"},
	{Connected, someRequest, "carried out"},
	{Connected, someFence, "the epoch is ended, and that said; only of a client that is an rdsd"},
	{Connected, someRested, "the pages of its chunks are given back; only after REST"},
	{Connected, someBeat, "answered"},
	{Connected, someBeatAck, "another is sent in the next interval"},
}

// takes says what is taken, by state.
type takes [numStates][numArrivals]bool

func newTakes(ts []taking) (t takes) {
	for _, x := range ts {
		t[x.in][x.what] = true
	}
	return t
}

var clientTakes, serverTakes = newTakes(clientTakings), newTakes(serverTakings)
