package volume

import (
	"net/netip"

	"github.com/rdsd/rdsd/rtrs"
)

// DropRefused gives up the paths with a link that may says no to, after the rules have
// changed. Those of the server are closed, those of a client connect anew, which says why
// they may not. may is asked for each link, whether this node has accepted it and over which
// transport it is; no lock is held then, so it may wait.
func (h *Host) DropRefused(may func(via string, accepted bool, local, remote netip.AddrPort) bool) (dropped int) {
	s := h.srv
	if list := s.refused(true, may); len(list) > 0 {
		now := s.lock(s.clock())
		for _, f := range list {
			if p, ok := f.path.(*rtrs.ServerPath); ok && !f.hung {
				s.rt.Disconnect(now, p)
				dropped++
			}
		}
		s.finish(now)
	}
	for _, c := range h.allClients() {
		list := c.refused(false, may)
		if len(list) == 0 {
			continue
		}
		now := c.lock(c.clock())
		for _, f := range list {
			if p, ok := f.path.(*rtrs.ClientPath); ok && !f.hung && c.rt.Reconnect(now, p) == nil {
				dropped++
			}
		}
		c.finish(now)
	}
	return dropped
}

// refused are the lives with a link that may not go on.
func (s *shell) refused(accepted bool, may func(via string, accepted bool, local, remote netip.AddrPort) bool) (list []*life) {
	type ends struct{ local, remote netip.AddrPort }
	links := map[*life][]ends{}
	done := s.look()
	for f := range s.lives {
		for _, k := range f.links {
			if k != nil && !f.hung {
				links[f] = append(links[f], ends{k.l.LocalAddr(), k.l.RemoteAddr()})
			}
		}
	}
	done()
	for f, l := range links {
		for _, k := range l {
			if !may(f.via.Name, accepted, k.local, k.remote) {
				list = append(list, f)
				break
			}
		}
	}
	return list
}
