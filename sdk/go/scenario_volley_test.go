package rdsd_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// volley sends numbered datagrams in batches, each of which is received before the next.
func (r *run) volley(s *rdsd.Socket, st *step, limit time.Duration) error {
	var name string
	if err := json.Unmarshal(st.To, &name); err != nil {
		return err
	}
	to, at := r.socks[name], r.hosts[st.At].client
	was, err := pairDatagrams(r.ctx, at)
	if err != nil {
		return err
	}
	batch, into := make([]rdsd.Datagram, st.Burst), make([]rdsd.Datagram, st.Burst)
	next, want := uint64(0), uint64(0)
	for begun := time.Now(); ; {
		for end := next + uint64(st.Count); next < end; {
			n := min(uint64(st.Burst), end-next)
			for i := range batch[:n] {
				batch[i] = rdsd.Datagram{Addr: to.LocalAddr(), Payload: binary.LittleEndian.AppendUint64(nil, next)}
				next++
			}
			if _, err := s.SendBatch(r.ctx, batch[:n]); err != nil {
				return err
			}
			for want < next {
				got, err := to.RecvBatch(r.ctx, into)
				if err != nil {
					return err
				}
				for _, d := range into[:got] {
					if d.Addr != s.LocalAddr() || len(d.Payload) != 8 || binary.LittleEndian.Uint64(d.Payload) != want {
						return fmt.Errorf("%x from %v, where number %d was to come from %v", d.Payload, d.Addr, want, s.LocalAddr())
					}
					want++
				}
			}
		}
		is, err := pairDatagrams(r.ctx, at)
		switch {
		case err != nil:
			return err
		case !st.Paired || is > was || s.FrontEnd() != rdsd.Rings:
			return nil
		case time.Since(begun) > limit:
			return fmt.Errorf("no pair in %v", limit)
		}
	}
}

// pairDatagrams is a daemon's counter of that name.
func pairDatagrams(ctx context.Context, c *rdsd.Client) (uint64, error) {
	l, err := c.Admin().Counters(ctx, netip.Addr{})
	if err != nil {
		return 0, err
	}
	i := slices.IndexFunc(l, func(c rdsd.Counter) bool { return c.Name == "pair_datagrams" })
	return l[i].Value, nil
}
