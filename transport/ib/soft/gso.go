package soft

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

// endGSO has all packets sent one by one from now on: the way does not take bursts. mu is held.
func (d *Device) endGSO() {
	if !d.out.gso {
		return
	}
	d.out.gso = false
	d.dev.SetGSO(false)
	d.stats.GSOEnded++
	d.r.DoFor(d, func() {
		d.cfg.Log.Warn("bursts of packets cannot be sent: packets are sent one by one from now on, which costs more processor time", "device", d.name())
	})
}

// beginGSO lets bursts be tried again, where they are wanted: the interface has changed. mu is
// held.
func (d *Device) beginGSO() {
	d.out.gso = !d.cfg.NoGSO && d.sock.canSegment()
	d.dev.SetGSO(d.out.gso)
}
