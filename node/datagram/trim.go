package datagram

// Trim lets go what the engines keep for traffic to come. A daemon that is quiet calls it before
// it collects; each engine is held for a few peers at a time.
func (a *Host) Trim() {
	for _, h := range a.list {
		for at := h.trim(0); at > 0; {
			at = h.trim(at)
		}
	}
}

func (h *Local) trim(from int) (next int) {
	h.mu.Lock()
	next = h.e.Trim(from)
	h.Unlock() // a timer may be due earlier now
	return next
}
