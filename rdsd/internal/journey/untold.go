package journey

import (
	"net/netip"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// Untold is a node whose half of journeys is missing, because no daemon of it was asked or
// because it has none.
type Untold struct {
	Address   netip.Addr    `json:"address"`
	Side      string        `json:"side"`      // sender or receiver
	Kind      rdsd.PeerKind `json:"kind"`      // what the daemon that was asked knows of it
	Datagrams int           `json:"datagrams"` // of those that are followed
}

// Untold returns the nodes whose stages nobody told, in the order of their first datagrams.
// kinds is what is known of peers.
func (l *Log) Untold(kinds map[netip.Addr]rdsd.PeerKind) []Untold {
	list := []Untold{}
	at := map[Untold]int{}
	note := func(a netip.Addr, side string) {
		if l.tells(a) {
			return
		}
		u := Untold{Address: a, Side: side, Kind: rdsd.PeerUnknown}
		if k, ok := kinds[a]; ok {
			u.Kind = k
		}
		i, ok := at[u]
		if !ok {
			i = len(list)
			at[u] = i
			list = append(list, u)
		}
		list[i].Datagrams++
	}
	for _, j := range l.begun {
		note(j.Source.Addr(), "sender")
		if j.Outcome != "not-accepted" { // it has never left: nobody there could tell
			note(j.Destination.Addr(), "receiver")
		}
	}
	return list
}
