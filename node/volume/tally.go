package volume

import (
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rnbd"
)

// storeKey is what a store is counted for: an export, or a name below a root.
type storeKey struct {
	place any // *rnbd.Export or *rnbd.Root
	name  string
}

// keyOf is what an opened store is counted for.
func keyOf(o *rnbd.Opening) storeKey {
	if e, ok := o.Place().(*rnbd.Export); ok {
		return storeKey{e, e.Name} // the client may have put it otherwise
	}
	return storeKey{o.Place(), o.Name}
}

// counted is a store with counters, which are those of its key: also what others have had done
// there, to whom it is known by another name.
type counted struct {
	*blk.Stats
	key storeKey
}

// Unwrap is the device below.
func (c *counted) Unwrap() blk.Device { return c.Stats }

// closedStores are the counters of stores of one key that are closed. They do not change: they
// are replaced.
type closedStores struct {
	counts [blk.NumOps]blk.OpCounts
	at     uint64 // the last was closed: a number that grows
}

// maxClosedBelow is of how many names below roots the counters stay when all of their stores are
// closed. Peers say which names there are.
const maxClosedBelow = 256

// tally begins to count what d does. mu is held.
func (s *server) tally(d blk.Device) {
	if c, ok := d.(*counted); ok {
		s.counting[c] = true
	}
}

// fold adds what a store has counted that is being closed to what others of its key have,
// so that no counter falls. mu is held.
func (s *server) fold(c rnbd.Closer) {
	d, ok := c.(*counted)
	if !ok || !s.counting[d] {
		return
	}
	delete(s.counting, d)
	sum, used := closedStores{counts: d.Counts()}, false
	for op := range sum.counts {
		used = used || sum.counts[op].Submitted > 0
	}
	if !used {
		return // opened for nothing, perhaps
	}
	was := s.closedStores[d.key]
	if was != nil {
		for op := range sum.counts {
			sum.counts[op].Add(&was.counts[op])
		}
	}
	s.lastClosed++
	sum.at = s.lastClosed
	s.closedStores[d.key] = &sum
	if was == nil {
		s.boundClosed()
	}
}

// boundClosed forgets the name below a root that was closed first, if there are too many. mu is
// held.
func (s *server) boundClosed() {
	var first storeKey
	n, at := 0, s.lastClosed
	for k, c := range s.closedStores {
		if _, below := k.place.(*rnbd.Root); !below {
			continue
		}
		if n++; c.at < at {
			first, at = k, c.at
		}
	}
	if n > maxClosedBelow {
		delete(s.closedStores, first)
	}
}

// forgetCounts forgets what was counted for an export that is not offered any more. mu is held.
func (s *server) forgetCounts(e *rnbd.Export) {
	k := storeKey{e, e.Name}
	delete(s.closedStores, k)
	for c := range s.counting {
		if c.key == k {
			delete(s.counting, c)
		}
	}
}

// CountedExport is an export with all that its stores have counted since it was exported, or was
// opened first: also those that are closed.
type CountedExport struct {
	ExportInfo
	Counts [blk.NumOps]blk.OpCounts
	Gone   bool // a volume below a root that is not open: there is nothing of it but Name and Counts
}

// CountedExports are the exports, and volumes below roots that were open before.
func (h *Host) CountedExports() []CountedExport {
	counts := h.srv.counts() // first: none is of what is listed and closed meanwhile
	exports := h.Exports()
	list := make([]CountedExport, len(exports), len(exports)+len(counts))
	for i, e := range exports {
		list[i].ExportInfo = e
		if c := counts[e.key]; c != nil {
			list[i].Counts = *c
			delete(counts, e.key)
		}
	}
	for k, c := range counts {
		if _, below := k.place.(*rnbd.Root); below {
			list = append(list, CountedExport{ExportInfo{ExportSpec: ExportSpec{Name: k.name}}, *c, true})
		}
	}
	return list
}

// counts adds up what was counted for each key since it was exported, or first opened.
func (s *server) counts() map[storeKey]*[blk.NumOps]blk.OpCounts {
	all := map[storeKey]*[blk.NumOps]blk.OpCounts{}
	// Only who counts is looked up under the lock. What is closed meanwhile was looked up
	// as open, so it is there once.
	done := s.look()
	open := make([]*counted, 0, len(s.counting))
	for c := range s.counting {
		open = append(open, c)
	}
	closed := make(map[storeKey]*closedStores, len(s.closedStores))
	for k, c := range s.closedStores {
		closed[k] = c
	}
	done()
	of := func(k storeKey) *[blk.NumOps]blk.OpCounts {
		if all[k] == nil {
			all[k] = new([blk.NumOps]blk.OpCounts)
		}
		return all[k]
	}
	for k, c := range closed {
		*of(k) = c.counts
	}
	for _, c := range open {
		sum, now := of(c.key), c.Counts()
		for op := range sum {
			sum[op].Add(&now[op])
		}
	}
	return all
}

// failedAgo is how long ago a request to one of the stores failed last; 0: none did.
func failedAgo(open []openVolume) (ago time.Duration) {
	for _, o := range open {
		if o.Device == nil {
			continue
		}
		if s, ok := blk.As[*blk.Stats](o.Device); ok {
			if d := s.FailedAgo(); d > 0 && (ago == 0 || d < ago) {
				ago = d
			}
		}
	}
	return ago
}
