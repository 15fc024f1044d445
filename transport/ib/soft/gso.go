package soft

// Whether bursts may be cut by the system.
//
// The invariant CRC covers IPv4's identification. When Linux cuts a burst (UDP_SEGMENT) it
// numbers the packets 0, 1, 2 …, and the core computes their CRCs for that. A network card that
// cuts by itself may number otherwise, and no plain socket can see it: a packet to ourselves
// does not pass the card. What shows it is the peer, which takes the first packet of each
// burst and no other. So the device watches how its bursts fare: when nearly each of a dozen
// was answered by a gap or by silence and the peer was heard afterwards, the next ones are
// packets sent one by one. (On a net that loses so much bursts are no gain either.) A peer that is not
// heard again says nothing about bursts: one of two networks that is cut silences many queue pairs at
// once, each several times, beside bursts that arrive. Over IPv6 there is no identification.

// Bursts that are judged together, and of them those that must have failed.
const (
	trialBursts = 16
	trialFailed = 14
)

// trial is where the judgement stands.
type trial struct {
	bursts uint64 // sent, when it began
	failed uint64 // gaps that were closed, when it began
}

// judgeGSO looks at the bursts that were sent since the last trial began. mu is held.
func (d *Device) judgeGSO() {
	o := &d.out
	sent := d.stats.SentBursts
	if !o.gso || sent-o.trial.bursts < trialBursts {
		return
	}
	failed := d.dev.Gaps()
	if (failed-o.trial.failed)*trialBursts >= (sent-o.trial.bursts)*trialFailed {
		d.endGSO()
	}
	o.trial = trial{sent, failed}
}

// endGSO has packets sent one by one from now on. mu is held.
func (d *Device) endGSO() {
	if !d.out.gso {
		return
	}
	d.out.gso = false
	d.dev.SetGSO(false)
	d.stats.GSOEnded++
	d.r.DoFor(d, func() {
		d.cfg.Log.Warn("bursts of packets do not arrive as they should: packets are sent one by one from now on, which costs more processor time",
			"device", d.name(), "hint", "if the network is sound, the card numbers the packets of a burst in a way of its own")
	})
}

// beginGSO lets bursts be tried again, where they are wanted: the interface has changed. mu is
// held.
func (d *Device) beginGSO() {
	d.out.gso = !d.cfg.NoGSO && d.sock.canSegment()
	d.dev.SetGSO(d.out.gso)
}
