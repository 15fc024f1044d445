package conn

import (
	"errors"
	"time"
)

var errSilent = errors.New("the peer fell silent")

func (c *Conn) rearm(at time.Duration) {
	if at < c.armed {
		c.armed = at
		c.owner.Arm(at)
	}
}

// Tick carries out everything that is due, and arms the next call.
func (c *Conn) Tick(now time.Duration) {
	if c.armed != Never && now-c.armed >= lateGrace {
		c.grace = now + lateGrace
	}
	c.armed = Never
	next := Never
	c.EachLane(func(p *Lane) { next = min(next, p.tick(now)) })
	c.tryGrow(now)
	if next != Never {
		c.rearm(max(next, now+time.Microsecond))
	}
}

// lastResort is when an attempt to connect is over of which the shell has not told, as it does earlier.
func lastResort(cfg *Config) time.Duration { return cfg.DialTimeout + time.Second }

func (p *Lane) tick(now time.Duration) time.Duration {
	cfg := p.c.cfg
	if p.sweepAt <= now {
		p.sweepAt = Never
		// A link that is in use has settled these already (settleCancelled).
		if p.state != Up || !p.ready {
			p.retrans.each(func(m *Msg) bool {
				if m.cancelled {
					p.settled(now, m)
					p.c.done(p, m, Unknown, WhyCancelledSent)
					return true
				}
				return false
			})
		}
	}
	if p.orphanAt <= now {
		p.orphanAt = p.giveUp(now)
	}
	if p.retryAt <= now {
		switch p.state {
		case Connecting:
			if last := p.since + lastResort(cfg); p.c.active && p.retryAt == last {
				// The shell was to tell earlier, so this process stood still. It is about to tell, and on a
				// link that was made meanwhile a kernel has sent what it forgets (Drop).
				p.retryAt = max(now, last) + lateGrace
				break
			}
			if !p.c.active {
				p.blame(now, errPoke)
				p.tryErr = true
			}
			p.event(now, EvFail)
		case Error:
			p.retryAt = Never
			// The side that connects also keeps up a link that was used: only this side can
			// connect, and the other may have something to send. A kernel may use any of its
			// lanes.
			if !p.idle(now) || p.c.active && p.wasUp && (p.idx < max(p.c.nlanes, 1) || p.c.kind == KindKernel) {
				p.event(now, EvWant)
			} else {
				p.event(now, EvIdle)
			}
		default:
			p.retryAt = Never
		}
	}
	next := min(p.retryAt, p.sweepAt, p.orphanAt, p.resumeLate(now))
	if p.state != Up {
		return next
	}
	if p.probed && !p.ready {
		if p.paused || p.shut && p.mute {
			// The answer may stand behind frames that a full receiver keeps unread.
			p.probedAt = now
		}
		due := p.probedAt + cfg.ProbeTimeout
		if now < p.c.grace { // the answer may lie in the socket's buffer
			due = max(due, p.c.grace)
		}
		if now >= due {
			p.noAnswer(now)
		}
		if p.state == Up && !p.ready {
			next = min(next, due)
		}
	}
	if p.state == Up {
		switch {
		case p.c.kind != KindRdsd: // before it is ready too: see MsgNull
			next = min(next, p.tickKernel(now), p.tickLead(now))
		case p.ready:
			next = min(next, p.tickRdsd(now))
		}
	}
	if p.state == Up && p.askAt != Never {
		if p.askAt <= now {
			p.askAt = Never
			if p.asked == 0 {
				p.ask(now)
			}
		} else {
			next = min(next, p.askAt)
		}
	}
	if p.congDirty && p.idx == 0 && p.state == Up {
		if at := p.congAt + p.c.mapInterval(); at <= now {
			p.kick()
		} else {
			next = min(next, at)
		}
	}
	return next
}

// lateGrace is how much later than due a tick has to come for silence to say nothing about
// the peer: this process stood still. It is also how long to wait until the socket's buffer
// has been read.
const lateGrace = time.Second

// tickRdsd handles the timers of a link to an rdsd: delayed acknowledgements, withheld
// credits, heartbeats.
func (p *Lane) tickRdsd(now time.Duration) time.Duration {
	cfg := p.c.cfg
	next := Never
	if p.ackDue <= now {
		p.ackPending = true
		p.ackDue = Never
		p.kick()
	}
	next = min(next, p.ackDue)
	// The peer may be unable to send its next frame: fewer credits are left than a quarter,
	// or than the largest frame costs.
	if p.owed > 0 && p.granted < max(p.window0()/4, creditFloor) {
		if p.grantable() > 0 {
			p.ackPending = true
			p.kick()
		} else {
			next = min(next, now+4*cfg.AckDelay)
		}
	}
	quiet := now - p.lastRx
	if quiet >= cfg.DeadAfter && now < p.c.grace {
		// This process stood still. Frames that came meanwhile are in the socket's buffer:
		// they are read before the next look, whatever else is due until then.
		return min(next, p.c.grace)
	}
	if quiet >= cfg.DeadAfter {
		p.c.ctr.HeartbeatLost++
		p.Drop(now, errSilent)
		return next
	}
	// One question at a time: any byte answers it, and DeadAfter ends the wait.
	if p.asked == 0 {
		at := p.heartbeatAt()
		if now < at {
			return min(next, at)
		}
		p.ask(now)
	}
	return min(next, p.lastRx+cfg.DeadAfter)
}

// heartbeatAt is when a silent peer is asked for a sign: on a grid that all
// share, so that a thousand idle peers wake the shell some ten times a second
// and not for each.
func (p *Lane) heartbeatAt() time.Duration {
	grid := max(p.c.cfg.Heartbeat/64, 1)
	at := p.lastRx + p.c.cfg.Heartbeat + grid - 1
	return at - at%grid
}

func (p *Lane) tickKernel(now time.Duration) time.Duration {
	if !p.awaitsTCP() {
		p.pollAt = Never
		return Never
	}
	if p.pollAt <= now {
		p.pollAt = now + p.pollEvery()
		p.emit(ActPoll)
	}
	return p.pollAt
}

// ask requests a sign of life: from an rdsd an acknowledgement, from a kernel by a message
// it ignores, which a dead connection answers with a reset.
func (p *Lane) ask(now time.Duration) {
	if p.c.kind == KindRdsd {
		p.asked = now
		p.askNow = true
	} else if p.ready && p.control.head == nil {
		m := p.c.com.NewMsg()
		m.Kind = MsgNull
		p.control.push(m)
	}
	p.kick()
}
