package datagram

// Collecting what clients have released. A client with rings that has read and
// released rings its doorbell only if its own socket waits for room. The memory
// budget is one for all sockets of the node: when it is spent, releases of any
// of them may be what somebody waits for, and nobody would look at them before
// their client does something else.

// collectTurn bounds the rings one reactor looks at in a turn.
const collectTurn = 256

// Collect has every reactor take the releases of all rings it serves, and every address drop flows
// that have nothing to hold: the engine of one knows who waits there, and not what others keep.
func (a *Host) Collect() {
	for i, w := range a.workers {
		switch {
		case !w.collecting.CompareAndSwap(false, true):
		case i == 0:
			w.thread.Do(func() { a.dropIdle(); w.collect() })
		default:
			w.thread.Do(w.collect)
		}
	}
}

// dropIdle runs on the first worker's thread.
func (a *Host) dropIdle() {
	for _, h := range a.list {
		h.mu.Lock()
		h.e.DropIdle()
		h.Unlock() // a timer may be due earlier now
	}
}

// collect runs on the worker's thread. Beyond collectTurn it goes on in the next
// turn, behind what else is there.
func (w *Worker) collect() {
	for range collectTurn {
		if w.collectAt >= len(w.rings) {
			w.collectAt = 0
			w.collecting.Store(false)
			return
		}
		w.rings[w.collectAt].Owner.Collect()
		w.collectAt++
	}
	w.thread.Do(w.collect)
}

// Enter and Exit keep the list of the rings a worker serves. On its thread.
func (w *Worker) Enter(r *Ring) {
	w.rings = append(w.rings, r)
	r.at = len(w.rings)
}

// Exit is for each Enter; without one it does nothing.
func (w *Worker) Exit(r *Ring) {
	if r.at == 0 {
		return // it never began
	}
	last := w.rings[len(w.rings)-1]
	w.rings[r.at-1], last.at = last, r.at
	w.rings[len(w.rings)-1] = nil
	w.rings = w.rings[:len(w.rings)-1]
	r.at = 0
}
