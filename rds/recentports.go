package rds

// maxRecentPorts bounds the ports that count as closed recently.
const maxRecentPorts = 1024

// recentPorts are the ports of the sockets that were closed last. A peer may still send
// there, for example the late answer to a request whose sender has given up and gone. A
// client that asks for any free port must not receive that, so such a port is not given out
// until maxRecentPorts others were closed after it. A client that names a port gets it at
// once.
type recentPorts struct {
	ring  []uint16 // oldest at next once it is full
	next  int
	count map[uint16]int // entries of the ring
}

func (r *recentPorts) has(port uint16) bool { return r.count[port] > 0 }

func (r *recentPorts) add(port uint16) {
	if r.count == nil {
		r.count = make(map[uint16]int)
	}
	r.count[port]++
	if len(r.ring) < maxRecentPorts {
		r.ring = append(r.ring, port)
		return
	}
	old := r.ring[r.next]
	if r.count[old]--; r.count[old] == 0 {
		delete(r.count, old)
	}
	r.ring[r.next] = port
	r.next = (r.next + 1) % maxRecentPorts
}
