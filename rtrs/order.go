package rtrs

// order is what the administrator, or the end of the session, asks of a client's path.
// What it does depends on where the path stands, and on nothing else but the order
// before: a path that is removed takes none, and one that is disconnected, or is about to
// be, is not disconnected twice.
type order uint8

// Orders.
const (
	disconnect order = iota // be Closed, until reconnect
	remove                  // be Dead
	reconnect               // be connected anew, now
	numOrders
)

var orderNames = [numOrders]string{"disconnect", "remove", "reconnect"}

func (o order) String() string { return orderNames[o] }

// goal is where the path is to come to.
func (o order) goal() State { return [numOrders]State{Closed, Dead, Reconnecting}[o] }

// obey is what an order does to a path that stands in one state.
type obey struct {
	text string
	do   func(*ClientPath) // after the goal is set; nil: the order is refused (ErrState)
}

// orderTable is what orders do, by state; docs/protocol.md has it.
var orderTable [numStates][numOrders]obey

func init() {
	on := func(s State, o order, text string, do func(*ClientPath)) { orderTable[s][o] = obey{text, do} }
	later := func(*ClientPath) {} // Gone looks for the goal
	lose := func(p *ClientPath) { p.lose(nil) }
	end := func(p *ClientPath) { p.retire(p.want) }

	on(Reconnecting, disconnect, "it is closed", end)
	on(Reconnecting, remove, "it is dead", end)
	on(Reconnecting, reconnect, "it is tried now", (*ClientPath).tryNow)

	on(Connecting, disconnect, "its links are closed, then it is", lose)
	on(Connecting, remove, "its links are closed, then it is dead", lose)
	on(Connecting, reconnect, "refused: it is being connected", nil)

	on(Connected, disconnect, "its links are closed, then it is", lose)
	on(Connected, remove, "its links are closed, then it is dead", lose)
	on(Connected, reconnect, "its links are closed, then it is tried without a pause", lose)

	on(Closing, disconnect, "it is closed when its links are", later)
	on(Closing, remove, "it is dead when its links are closed", later)
	on(Closing, reconnect, "it is tried without a pause when its links are closed", later)

	// Out of attempts, or disconnected.
	on(Closed, disconnect, "it stays so", later)
	on(Closed, remove, "it is dead", end)
	on(Closed, reconnect, "it is tried now", func(p *ClientPath) {
		p.setState(Reconnecting)
		p.tryNow()
	})

	for _, s := range []State{Fencing, Draining, Dead} { // of which a client's path has the last alone
		for o := range numOrders {
			on(s, o, "refused: it is gone", nil)
		}
	}
}

// order has p obey o; ErrState: it is not taken in this state, or has been given.
func (p *ClientPath) order(o order) error {
	do := orderTable[p.state][o].do
	switch {
	case do == nil, p.want == Dead:
		return ErrState
	case o == disconnect && p.want == Closed && (p.state == Closing || p.state == Closed):
		return ErrState
	}
	p.want = o.goal()
	if o == reconnect {
		// An administrator who asks does not want to wait for a backoff that earlier failures
		// have made long.
		p.failures, p.noBackoff = 0, true
	}
	do(p)
	return nil
}

// tryNow has p, which waits for its next attempt, make it now.
func (p *ClientPath) tryNow() {
	p.startAt(p.c.now)
	p.tick(p.c.now)
}
