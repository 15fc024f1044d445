package soft

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/reactor"
)

// event is a handler to be called.
type event struct {
	kind eventKind
	q    *queuePair
	l    *listener
	a    *asked
	err  error
}

type eventKind uint8

const (
	evReady       eventKind = iota // q has completions
	evEstablished                  // q's peer has taken the connection
	evEnded                        // q has failed, because of err
	evAsked                        // a peer has dialled l
	evNothing
)

var _ reactor.Eager = (*Device)(nil)

// Ready is called by the reactor.
func (d *Device) Ready(events uint32) {
	guard.Point("volume.link")
	if events&unix.EPOLLOUT != 0 {
		d.resume()
	}
	if events&^unix.EPOLLOUT != 0 {
		d.read()
	}
}

// Try is called by the reactor while it spins; see reactor.Eager.
func (d *Device) Try() bool { return d.read() }

// read takes what arrived, within bounds, has handlers answer, and sends answers and
// acknowledgements together at the turn's end.
func (d *Device) read() (worked bool) {
	for bytes, calls := 0, 0; bytes < turnBytes && calls < turnCalls; calls++ {
		n, more, err := d.in.read(d.sock)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			// What else a socket reports is an error of a packet that was sent, or of an interface.
			if err != unix.EAGAIN {
				d.mu.Lock()
				d.stats.ReceiveErrors++
				d.mu.Unlock()
			}
			break
		}
		worked = true
		for i := range n {
			// One message at a time, so that others who want to post do not wait for all.
			d.mu.Lock()
			d.now = d.r.Now()
			got, whole := d.in.each(i, d.eachPkt)
			if !whole {
				d.stats.RcvdTooLong++
			}
			d.stats.RcvdBytes += uint64(got)
			d.stats.RcvdMessages++
			bytes += got
			d.settle(d.now)
			d.mu.Unlock()
		}
		d.deliver()
		if !more {
			break
		}
	}
	if worked {
		d.flushLater()
	}
	return worked
}

// packet takes one packet. mu is held.
func (d *Device) packet(from netip.AddrPort, pkt []byte) { d.dev.Receive(d.now, from, pkt) }

// deliver calls the handlers whose turn it is. Those that come meanwhile have the next one.
func (d *Device) deliver() {
	d.mu.Lock()
	d.asked = false
	for n := len(d.events) - d.called; n > 0; n-- {
		ev := d.events[d.called]
		d.events[d.called] = event{}
		d.called++
		if ev.q != nil && ev.q.closed {
			continue
		}
		if ev.kind == evReady {
			ev.q.queued = false
		}
		d.mu.Unlock()
		if ev.kind == evEnded {
			// What says to the peer why leaves first: its owner disconnects, and may close the queue pair.
			d.flush()
		}
		d.calling = ev.q
		ev.call()
		d.calling = nil
		d.mu.Lock()
	}
	if d.called == len(d.events) {
		d.events, d.called = d.events[:0], 0
	} else if !d.asked {
		d.asked = true
		d.r.DoFor(d, d.delivery)
	}
	d.mu.Unlock()
}

func (ev *event) call() {
	switch ev.kind {
	case evReady:
		ev.q.h.Ready()
	case evEstablished:
		ev.q.h.Established()
	case evEnded:
		ev.q.h.Ended(ev.err)
	case evAsked:
		ev.l.ask(ev.a)
	}
}

// flushLater has what can be sent leave at the end of this turn. On the reactor's thread.
func (d *Device) flushLater() {
	if !d.ending {
		d.ending = true
		d.r.Defer(d.transmit)
	}
}

func (d *Device) endTurn() {
	d.ending = false
	d.flush()
}

// doorbell has what was posted sent: on the reactor's thread at the end of its turn, with
// all else that it brings; elsewhere at once.
func (d *Device) doorbell() {
	if d.r.OnThread() {
		d.flushLater()
	} else {
		d.flush()
	}
}
