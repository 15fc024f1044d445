package service

import (
	"net/netip"
	"slices"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/node/client"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/rds"
)

// queueLister collects datagrams that wait somewhere, by pages: see pages.go.
type queueLister struct {
	want      rdsdv1.QueueKind
	local     netip.AddrPort // only what it has sent or is to read; zero: all
	limit     int
	looked    int // datagrams to be sent that were looked at
	list      []*rdsdv1.QueuedDatagram
	truncated bool
}

// maxQueueLooked bounds the datagrams to be sent that are looked at for those of one endpoint. It
// takes milliseconds, and nothing else bounds it where others have most of them.
const maxQueueLooked = 200000

// wants reports whether to look for datagrams of a kind.
func (q *queueLister) wants(kind rdsdv1.QueueKind) bool {
	return !q.truncated && (q.want == rdsdv1.QueueKind_QUEUE_KIND_UNSPECIFIED || q.want == kind)
}

// sends lists what waits to be sent or acknowledged.
func (q *queueLister) sends(h *datagram.Local) {
	which := 0
	if q.wants(rdsdv1.QueueKind_QUEUE_KIND_SEND) {
		which |= conn.NotSent
	}
	if q.wants(rdsdv1.QueueKind_QUEUE_KIND_RETRANS) {
		which |= conn.Sent
	}
	if which == 0 {
		return
	}
	e, _ := h.Lock()
	peers := slices.Clone(e.Peers())
	h.Unlock()
	var at conn.Cursor
	for len(peers) > 0 && !q.truncated {
		h.Lock()
		for most := datagram.PageSize; len(peers) > 0 && most > 0; most-- {
			pe := peers[0]
			more := pe.Conn().PageQueued(&at, which, most, func(m *conn.Msg, bytes, lane int, sent bool) bool {
				most--
				if q.looked++; q.looked > maxQueueLooked && q.local.IsValid() {
					q.truncated = true
					return false
				}
				if q.local.IsValid() && m.SPort != q.local.Port() {
					return true
				}
				k := rdsdv1.QueueKind_QUEUE_KIND_SEND
				if sent {
					k = rdsdv1.QueueKind_QUEUE_KIND_RETRANS
				}
				return q.add(k, netip.AddrPortFrom(h.Addr(), m.SPort), netip.AddrPortFrom(pe.Addr(), m.DPort), m.Seq(), bytes, lane)
			})
			if more {
				break
			}
			peers, at = peers[1:], conn.Cursor{}
		}
		h.Unlock()
	}
}

// receives lists what waits to be read.
func (q *queueLister) receives(h *datagram.Local) {
	if !q.wants(rdsdv1.QueueKind_QUEUE_KIND_RECV) {
		return
	}
	e, _ := h.Lock()
	var socks []*rds.Socket
	if !q.local.IsValid() {
		socks = e.Bound()
	} else if s := e.Socket(q.local.Port()); s != nil {
		socks = []*rds.Socket{s}
	}
	h.Unlock()
	slices.SortFunc(socks, func(a, b *rds.Socket) int { return int(a.Addr().Port()) - int(b.Addr().Port()) })
	shown := 0 // of the first socket
	for len(socks) > 0 && !q.truncated {
		h.Lock()
		for most := datagram.PageSize; len(socks) > 0 && most > 0 && !q.truncated; most-- {
			s, seen, more := socks[0], 0, false
			if !s.Closed() {
				s.EachQueued(func(src netip.AddrPort, bytes int) bool {
					if seen++; seen <= shown {
						return true
					}
					if more = most <= 0; more {
						return false
					}
					most, shown = most-1, shown+1
					return q.add(rdsdv1.QueueKind_QUEUE_KIND_RECV, s.Addr(), src, 0, bytes, 0)
				})
			}
			if !more {
				socks, shown = socks[1:], 0
			}
		}
		h.Unlock()
	}
}

func (q *queueLister) add(kind rdsdv1.QueueKind, local, remote netip.AddrPort, seq uint64, bytes, lane int) (more bool) {
	if len(q.list) >= q.limit {
		q.truncated = true
		return false
	}
	d := &rdsdv1.QueuedDatagram{}
	d.SetKind(kind)
	d.SetLocal(client.EndpointPB(local))
	d.SetRemote(client.EndpointPB(remote))
	d.SetSeq(seq)
	d.SetBytes(uint64(bytes))
	d.SetLane(uint32(lane))
	q.list = append(q.list, d)
	return true
}
