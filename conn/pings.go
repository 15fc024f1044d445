package conn

// Pings of a kernel beyond the first of a link, and what is believed of its answers.

// maxLate bounds the answers that are taken to be late, for each costs the time of another ping: a kernel
// that has had more pings on links that were lost before an answer was read is not looked for.
const maxLate = 8

// pingAgain queues a further ping, for which this link has not had an answer.
func (p *Lane) pingAgain() {
	if p.state != Up || p.idx != 0 || p.ready && (p.c.kind != KindKernel || p.c.known >= p.c.kernelLanes()) {
		return
	}
	for m := p.control.head; m != nil; m = m.next {
		if m.Kind == MsgProbe {
			return
		}
	}
	m := p.c.com.NewMsg()
	m.Kind = MsgProbe
	p.control.push(m)
	p.kick()
}

// tellLanes makes sure that a kernel learns how many lanes we want: so far it may have been
// told one, or the number from before a restart.
func (p *Lane) tellLanes() {
	c := p.c
	if c.kind != KindKernel || p.idx != 0 || c.known >= c.kernelLanes() {
		return
	}
	for _, n := range p.toldPending {
		if n >= c.kernelLanes() {
			return // on its way
		}
	}
	for m := p.control.head; m != nil; m = m.next {
		if m.Kind == MsgProbe {
			return
		}
	}
	m := c.com.NewMsg()
	m.Kind = MsgProbe
	p.control.push(m)
}
