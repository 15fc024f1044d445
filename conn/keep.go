package conn

// What is refused is noted until the peer acknowledges that, so a peer decides how much. The first
// keptFree refusals of a connection are within what any peer costs; further ones are asked for, keptStep
// at a time, and given back when the peer has acknowledged all. A peer cannot acknowledge what has not
// come to it, and sends meanwhile what its credits allow: so much is asked for as what it is sure of.
const (
	keptFree = 512
	keptStep = 1024
)

// refusalBytes is the memory of a refusal, as long as it is kept: 12 bytes in a message of some, with
// what such a message takes.
const refusalBytes = 20

// mayRefuse reports whether there is memory for another refusal.
func (c *Conn) mayRefuse() bool {
	if c.refusals() < keptFree+c.kept {
		return true
	}
	if !c.owner.Keep(keptStep*refusalBytes, c.kept < c.nlanes<<c.cfg.CreditLog2) {
		return false
	}
	c.kept += keptStep
	return true
}

// forgotRefusals gives back what was asked for if no refusal is left.
func (c *Conn) forgotRefusals() {
	if c.kept > 0 && c.refusals() == 0 {
		c.giveBack()
	}
}

func (c *Conn) giveBack() {
	c.owner.Keep(-c.kept*refusalBytes, false)
	c.kept = 0
}

func (c *Conn) refusals() (n int) {
	c.EachLane(func(p *Lane) { n += p.refusals })
	return n
}
