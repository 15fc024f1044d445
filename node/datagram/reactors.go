package datagram

import (
	"fmt"
	"runtime"
	"sync/atomic"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/node/config"
)

// Worker is one reactor of the node, with what its turn has collected.
type Worker struct {
	*reactor.Reactor // nil in a simulated world
	thread           Thread

	// kicked are the lanes that the turn ends with: to be transmitted on, from their batch on if
	// there is one already. flushing are those of the turn that is ending. Owned by the thread.
	kicked, flushing []sending
	lone             conn.Offer // for OfferLone; between two turns its batch is empty or nil; owned by the thread

	rings      []*Ring           // served here; owned by the thread
	shares     map[uint32]*Share // by user; owned by the thread
	collectAt  int               // where in rings collect goes on; owned by the thread
	collecting atomic.Bool       // collect runs, or is about to
}

// kick has p transmitted on at the end of the turn: what several rings and
// links queue in one turn leaves together. On the worker's thread.
func (w *Worker) kick(h *Local, p *conn.Lane) { w.kicked = append(w.kicked, sending{h: h, p: p}) }

// flush ends a turn: it transmits. A lane with more than its share of a turn to send comes
// again in the next, behind whatever else has arrived.
func (w *Worker) flush() (more bool) {
	if len(w.kicked) == 0 {
		return false
	}
	w.kicked, w.flushing = w.flushing[:0], w.kicked
	for i, k := range w.flushing {
		w.flushing[i] = sending{}
		if k.b != nil {
			more = k.h.write(k, bytesATurn)
		} else {
			more = k.h.transmit(k.p, bytesATurn)
		}
		if more {
			w.kick(k.h, k.p)
		}
	}
	return len(w.kicked) > 0
}

// reactorOptions is one entry for each thread the configuration asks for.
func reactorOptions(c *config.Config) []reactor.Options {
	n := c.Reactor.Threads
	switch {
	case n > 0:
	case len(c.Reactor.CPUs) > 0:
		n = len(c.Reactor.CPUs)
	case runtime.NumCPU() <= 4:
		n = 1
	default:
		n = 2
	}
	l := make([]reactor.Options, n)
	for i := range l {
		l[i] = reactor.Options{Name: fmt.Sprintf("rdsd/%d", i), CPU: -1, SpinFor: c.Reactor.Spin.Duration}
		if l[i].SpinFor == 0 {
			l[i].SpinFor = -1
		}
		if i < len(c.Reactor.CPUs) {
			l[i].CPU = c.Reactor.CPUs[i]
		}
	}
	return l
}

// startReactors is undone by stopReactors.
func (a *Host) startReactors() error {
	o := reactorOptions(a.deps.Config)
	addReactors(len(o))
	for _, o := range o {
		o.Guard = a.deps.Guard
		r, err := reactor.New(o)
		if err != nil {
			return err
		}
		a.addWorker(&Worker{Reactor: r, thread: reactorThread{r}})
	}
	return nil
}

func (a *Host) addWorker(w *Worker) {
	w.shares = map[uint32]*Share{}
	w.thread.AtEnd(w.flush)
	a.workers = append(a.workers, w)
}

func (a *Host) stopReactors() {
	for _, w := range a.workers {
		w.Close()
	}
	addReactors(-len(a.workers))
}

// here is the worker the caller runs on, nil in any other goroutine.
func (a *Host) here() *Worker {
	for _, w := range a.workers {
		if w.thread.OnThread() {
			return w
		}
	}
	return nil
}

// nudge, called after goroutines were readied, lets other threads take them if
// the caller is a reactor. The scheduler keeps the goroutine readied last for
// the thread that readied it, which in any other program is about to have time;
// readying one more gives it up to all. (Measured: a goroutine then runs 30 µs
// after a reactor woke it, instead of 80.)
func (a *Host) nudge() {
	if w := a.here(); w != nil && w.Reactor != nil {
		go func() {}() // ends at once
	}
}
