package load

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/rdsd/internal/dial"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// Responded is what a Responder saw.
type Responded struct {
	Elapsed  float64 `json:"t"` // seconds since the start
	Received uint64  `json:"received"`
	Answered uint64  `json:"answered"`
	Damaged  uint64  `json:"damaged"` // wrong contents or wrong order
	Foreign  uint64  `json:"foreign"` // not from a load generator; ignored
	Bytes    uint64  `json:"bytes"`
}

// Responder is the receiving end of a run.
type Responder struct {
	sock    *rdsd.Socket
	ackSize int
	start   time.Time
	seen    Responded
	next    map[netip.AddrPort]uint64 // sequence number expected of each sender
}

// Respond answers on sock until ctx ends. report gets the running
// totals each interval and once more at the end.
func Respond(ctx context.Context, sock *rdsd.Socket, ackSize int, interval time.Duration, report func(Responded)) error {
	r := &Responder{sock: sock, ackSize: ackSize, start: time.Now(), next: map[netip.AddrPort]uint64{}}
	into := make([]rdsd.Datagram, batchDatagrams)
	var acks []rdsd.Datagram
	last := r.start
	defer func() { report(r.totals()) }()
	for {
		n, err := sock.RecvBatch(ctx, into)
		if err != nil {
			if ended(ctx, err) {
				return nil
			}
			return fmt.Errorf("receiving on %s: %w", sock.LocalAddr(), dial.Cause(err))
		}
		acks = acks[:0]
		for _, d := range into[:n] {
			if a, ok := r.take(d); ok {
				acks = append(acks, a)
			}
		}
		if len(acks) > 0 {
			accepted, err := sock.SendBatch(ctx, acks)
			r.seen.Answered += uint64(accepted)
			if err != nil {
				if ended(ctx, err) {
					return nil
				}
				return fmt.Errorf("answering from %s: %w", sock.LocalAddr(), dial.Cause(err))
			}
		}
		if now := time.Now(); now.Sub(last) >= interval {
			last = now
			report(r.totals())
		}
	}
}

func (r *Responder) totals() Responded {
	s := r.seen
	s.Elapsed = time.Since(r.start).Seconds()
	return s
}

// maxSenders bounds the memory kept for sequence checks.
const maxSenders = 1 << 16

// take checks one datagram and, for a request, returns its answer.
func (r *Responder) take(d rdsd.Datagram) (rdsd.Datagram, bool) {
	h, intact, ok := parse(d.Payload)
	if !ok || h.kind == kindAck {
		r.seen.Foreign++
		return rdsd.Datagram{}, false
	}
	r.seen.Received++
	r.seen.Bytes += uint64(len(d.Payload))
	next, known := r.next[d.Addr]
	if !known || h.seq == 0 {
		next = h.seq // a run that began before this end did, or a new one from the same port
	}
	damaged := !intact || h.seq != next
	if damaged {
		r.seen.Damaged++
	}
	if known || len(r.next) < maxSenders {
		r.next[d.Addr] = h.seq + 1
	}
	if h.kind != kindRequest {
		return rdsd.Datagram{}, false
	}
	a := header{kind: kindAck, seq: h.seq, sentNs: h.sentNs}
	if damaged {
		a.flags = flagDamaged
	}
	p := make([]byte, r.ackSize)
	a.put(p, false)
	return rdsd.Datagram{Addr: d.Addr, Payload: p}, true
}
