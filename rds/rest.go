package rds

// restPorts is how many ports rest at a time.
const restPorts = 1024

// restingPorts are the ports of the sockets that were closed last. Somebody may
// still send there, for example the late answer to a request whose sender has
// given up and gone. Whoever asks for any free port must not receive that, so
// such a port rests until restPorts others were closed after it. Whoever names a
// port gets it at once.
type restingPorts struct {
	ring  []uint16 // oldest at next once it is full
	next  int
	count map[uint16]int // entries of the ring
}

func (r *restingPorts) has(port uint16) bool { return r.count[port] > 0 }

func (r *restingPorts) add(port uint16) {
	if r.count == nil {
		r.count = make(map[uint16]int)
	}
	r.count[port]++
	if len(r.ring) < restPorts {
		r.ring = append(r.ring, port)
		return
	}
	old := r.ring[r.next]
	if r.count[old]--; r.count[old] == 0 {
		delete(r.count, old)
	}
	r.ring[r.next] = port
	r.next = (r.next + 1) % restPorts
}
