package rnbd

import (
	"net/netip"

	"github.com/rdsd/rdsd/blk"
)

func (w *world) Hold(netip.Addr) (func(), error) {
	if w.noHold != nil {
		return nil, w.noHold
	}
	w.holds++
	srv := w.srv
	return func() {
		if w.srv == srv {
			w.holds--
		}
	}, nil
}

// checkHolds says whether something is charged of which nothing is left.
func (w *world) checkHolds() {
	left := map[*handle]bool{}
	note := func(list ...*handle) {
		for _, h := range list {
			if h.let != nil {
				left[h] = true
			}
		}
	}
	for _, e := range w.srv.sessions {
		note(e.handles...)
	}
	for _, v := range w.srv.volumes {
		note(v.handles...)
		for i, h := range v.handles {
			if h.at != i {
				w.t.Errorf("a handle at %d is said to be at %d", i, h.at)
			}
		}
	}
	for _, list := range [][]*Opening{w.srv.orphans, w.openings, w.notes} {
		for _, o := range list {
			note(o.h)
		}
	}
	if w.holds != len(left) {
		w.t.Errorf("%d volumes are charged, and there are %d", w.holds, len(left))
	}
}

// Devices lists the devices that are open, each once.
func (s *Server) Devices() []blk.Device {
	var list []blk.Device
	for _, v := range s.volumes {
		for _, st := range v.stores {
			if st != nil {
				list = append(list, st.dev)
			}
		}
	}
	return list
}
