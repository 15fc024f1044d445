package node

import (
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/transport"
)

// busyGap: when the last turn of a path ended less than this ago, the path is
// under load and the turn goes to the flusher, so that batches form while it is on
// its way. Otherwise the caller writes at once and nobody has to be woken.
const busyGap = 20 * time.Microsecond

func (h *host) kick(p *conn.Path) {
	h.mu.Lock()
	busy := h.now()-h.laneOf(p).lastTurn < busyGap
	if busy {
		h.kicked = append(h.kicked, p)
	}
	h.mu.Unlock()
	if !busy {
		h.transmit(p)
		return
	}
	select {
	case h.flush <- struct{}{}:
	default:
	}
}

// flusher transmits for paths under load. It ends with stop.
func (h *host) flusher() {
	var todo []*conn.Path
	for {
		select {
		case <-h.flush:
		case <-h.quit:
			return
		}
		h.mu.Lock()
		todo, h.kicked = h.kicked, todo[:0]
		h.mu.Unlock()
		for _, p := range todo {
			h.transmit(p)
		}
		clear(todo)
	}
}

// turnsAtOnce bounds how long a sender transmits for the others too.
const turnsAtOnce = 16

// transmit writes what p has to send, in the caller's thread, until there is
// no more or the link is full. The engine gives the turn to one caller at a
// time (Fill after Fill, with Wrote between).
func (h *host) transmit(p *conn.Path) {
	b := transport.GetBatch()
	_, now := h.lock()
	for turn := 0; ; turn++ {
		l := h.laneOf(p).current(p)
		if l == nil || !h.e.Fill(now, p, b) {
			b.Put()
			h.unlock()
			return
		}
		h.unlock()
		done, err := l.link.Send(b)
		if !done && err == nil {
			h.all.full.Add(1)
			return // the link goes on, and calls Written
		}
		b.Reset()
		_, now = h.lock()
		if err != nil {
			l.dead = true // its reader will report it; nothing more is written
		}
		h.laneOf(p).lastTurn = now
		if more := h.e.Wrote(now, p); !more || err != nil {
			b.Put()
			h.unlock()
			return
		}
		if turn >= turnsAtOnce {
			h.unlock()
			b.Put()
			h.background(func() { h.transmit(p) })
			return
		}
	}
}
