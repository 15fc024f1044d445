package conn

// Sender is one flow of a socket: it knows the messages it has on a connection that have no
// outcome yet, in the order in which they were accepted. A cancel or close of one socket
// therefore costs only as much as that socket has sent, however much others have queued to
// the same peer.
//
// A Sender must not move while it has messages.
type Sender struct {
	owner      Completer
	head, tail *Msg
	messages   int
}

// NewSender returns a Sender whose outcomes go to owner.
func NewSender(owner Completer) Sender { return Sender{owner: owner} }

// Owner is who is told the outcomes.
func (s *Sender) Owner() Completer { return s.owner }

// Messages is how many have no outcome yet.
func (s *Sender) Messages() int { return s.messages }

// add takes m in, which counts in f, the entry of its source port, until it is done (Conn.done):
// behind the others; split puts it before another message, of which it is a part.
func (s *Sender) add(f *flowLane, m, before *Msg) {
	f.out++
	if m.aft = before; before == nil {
		m.fore, s.tail = s.tail, m
	} else {
		m.fore, before.fore = before.fore, m
	}
	if m.fore == nil {
		s.head = m
	} else {
		m.fore.aft = m
	}
	s.messages++
}
