package volume

import "fmt"

// stage is how far a mapping has come. What it has is what the stages up to its own have
// brought, and nothing else says so: bringUp goes on from there, end and leave undo that
// much.
//
//	taken --> joined --> opened --> shown
//	  |         |          |          |
//	  +---------+----------+----------+--> over
type stage uint8

const (
	taken  stage = iota // its ID, its place on this node and its volume are nobody else's
	joined              // it has a part of a session
	opened              // the server has opened the volume: there is a device
	shown               // programs can use it
	over                // what it had is given back, or left to the next Host; nothing is made of it any more
	numStages
)

var stageNames = [numStages]string{"taken", "joined", "opened", "shown", "over"}

func (s stage) String() string {
	if s < numStages {
		return stageNames[s]
	}
	return "unknown"
}

// stageMove is a change of stage, and when it happens.
type stageMove struct {
	from, to stage
	when     string
}

// stageTable is the whole life of a mapping. A move that is not there does not happen.
var stageTable = []stageMove{
	{taken, joined, "a session with the node is there, or one was made"},
	{taken, over, "unmapped, given up, or the daemon ends"},
	{joined, opened, "the server has answered OPEN"},
	{joined, over, "the same; the part of the session is given back"},
	{opened, shown, "the socket listens, or the kernel has the device"},
	{opened, over, "the same; the volume is closed before"},
	{shown, over, "the same; programs get their last answers before"},
}

var stageMay = func() (may [numStages][numStages]bool) {
	for _, m := range stageTable {
		may[m.from][m.to] = true
	}
	return may
}()

// move is the one place where a mapping's stage changes. turn and Host.mu are held.
func (m *mapping) move(to stage) {
	if !stageMay[m.stage][to] {
		panic(fmt.Sprintf("mapping %s is %v and becomes %v", m.id, m.stage, to))
	}
	m.stage = to
}

// finish makes a mapping over and returns what it was; false: it is over already. turn is
// held: whoever comes second, of Map that gives up, Unmap and the end of the Host, undoes
// nothing twice.
func (m *mapping) finish() (was stage, first bool) {
	m.h.mu.Lock()
	defer m.h.mu.Unlock()
	if was = m.stage; was == over {
		return was, false
	}
	m.move(over)
	return was, true
}
