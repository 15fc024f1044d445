package shm

import "net/netip"

// PairSource is a pair that a reader looks at, and whose datagrams come by it.
type PairSource struct {
	*PairReceiver
	Src netip.AddrPort
}

// RecvRing is a receive ring as far as the order of what is read depends on it.
type RecvRing interface {
	Peek(d *RecvDesc) (bool, error)
	Head() uint64
}

var _ RecvRing = (*Receiver)(nil)

// maxPairRun is how many records in a row come out of pairs while the ring may have
// something.
const maxPairRun = 16

// PairOrder is the order in which a reader takes what lies in its receive ring and in its
// pairs (docs/pairs.md, "Receiving"). It is for one goroutine at a time.
type PairOrder struct {
	run int // records in a row out of pairs
	at  int // the pair to begin with, modulo their number
}

// FromPair notes that a record was taken from a pair.
func (o *PairOrder) FromPair() {
	o.run++
	o.at++
}

// FromRing notes that a descriptor was taken from the ring.
func (o *PairOrder) FromRing() { o.run = 0 }

// Next says where the next datagrams are: in pair p; or, with p < 0, in the ring, if ok.
func (o *PairOrder) Next(ring RecvRing, in []PairSource, d *RecvDesc) (p int, rec PairRecord, ok bool, err error) {
	if o.run < maxPairRun {
		if p, rec = o.nextPair(ring, in); p >= 0 {
			return p, rec, false, nil
		}
	}
	if ok, err = ring.Peek(d); ok {
		// What this source has put into its pair and may be taken was sent before this. The pair
		// is looked at after the ring: the sender put it there before it went by the daemon.
		for p := range in {
			if in[p].Src == d.Src {
				if rec, is := in[p].Peek(ring.Head()); is {
					return p, rec, false, nil
				}
			}
		}
		return -1, rec, true, nil
	}
	if o.run >= maxPairRun {
		p, rec = o.nextPair(ring, in)
		return p, rec, false, err
	}
	return -1, rec, false, err
}

// nextPair finds a pair with something whose turn has come, beginning behind the last; -1:
// there is none.
func (o *PairOrder) nextPair(ring RecvRing, in []PairSource) (int, PairRecord) {
	head := ring.Head()
	for i := range in {
		p := (o.at + i) % len(in)
		if rec, ok := in[p].Peek(head); ok {
			return p, rec
		}
	}
	return -1, PairRecord{}
}
