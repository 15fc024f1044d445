package service

import (
	"net/netip"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/node/volume"
)

// pair is who a peer is: the same for datagrams and for volumes.
type pair struct{ local, remote netip.Addr }

// withVolumes adds the paths of volumes to the peers they lead to. A peer that has
// nothing but such paths comes behind the others. local and remote, where valid, say
// which peers are wanted.
func withVolumes(list []*rdsdv1.Peer, paths []volume.PathInfo, local, remote netip.Addr, now time.Time) []*rdsdv1.Peer {
	at := map[pair]*rdsdv1.Peer{}
	for _, p := range list {
		at[pair{addrOf(p.GetLocal()), addrOf(p.GetRemote())}] = p
	}
	of := map[*rdsdv1.Peer][]*rdsdv1.VolumePath{}
	for i := range paths {
		k := endsOf(&paths[i])
		if !k.remote.IsValid() { // its name has no address, and nobody knows whose it is
			continue
		}
		if local.IsValid() && k.local != local || remote.IsValid() && k.remote != remote {
			continue
		}
		p := at[k]
		if p == nil {
			p = &rdsdv1.Peer{}
			if k.local.IsValid() { // else it has no connection, and any address will do
				p.SetLocal(k.local.AsSlice())
			}
			p.SetRemote(k.remote.AsSlice())
			at[k] = p
			list = append(list, p)
		}
		of[p] = append(of[p], volumePathPB(&paths[i], now))
	}
	for p, l := range of {
		p.SetVolumePath(l)
	}
	return list
}

// endsOf tells whose a path is. Its source is the client's.
func endsOf(i *volume.PathInfo) pair {
	src, dst := hostOf(i.Src), hostOf(i.Dst)
	if i.Role == volume.RoleServer {
		return pair{dst, src}
	}
	return pair{src, dst}
}

// hostOf is the address in "10.0.0.1:16388" or "10.0.0.1"; none where there is no such.
func hostOf(s string) netip.Addr {
	if p, err := netip.ParseAddrPort(s); err == nil {
		return p.Addr().Unmap()
	}
	a, _ := netip.ParseAddr(s)
	return a.Unmap()
}

func addrOf(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a.Unmap()
}
