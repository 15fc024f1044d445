package soft

import "net/netip"

// judgeGSO says when bursts to a peer did not arrive (package roce, LostBursts). mu is held.
func (d *Device) judgeGSO() {
	o := &d.out
	n, peer := d.dev.LostBursts()
	if n == o.lost {
		return
	}
	d.stats.GSOEnded += n - o.lost
	o.lost = n
	d.r.DoFor(d, func() {
		d.cfg.Log.Warn("bursts of packets to a peer do not arrive as they should: packets to it are sent one by one for a while, which costs more processor time",
			"device", d.name(), "peer", peer, "hint", "if the network is sound and other peers are named, too, the card numbers the packets of a burst in a way of its own: set volumes.rdma_gso = \"off\"")
	})
}

// restGSO ends bursts for a while to those peers to whom the system has not taken one. mu is held.
func (d *Device) restGSO(peers []netip.Addr) {
	for _, peer := range peers {
		if !d.dev.Refused(d.m.Clock(), peer) {
			continue
		}
		d.stats.GSOEnded++
		d.r.DoFor(d, func() {
			d.cfg.Log.Warn("bursts of packets to a peer cannot be sent: packets to it are sent one by one for a while, which costs more processor time", "device", d.name(), "peer", peer)
		})
	}
}

// beginGSO lets bursts be tried again, where they are wanted: the interface has changed. mu is
// held.
func (d *Device) beginGSO() {
	d.out.gso = !d.cfg.NoGSO && d.sock.canSegment()
	d.dev.SetGSO(d.out.gso)
}
