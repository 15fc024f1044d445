package rdsd_test

import (
	"bytes"
	"context"
	"fmt"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// borrowed is what a borrow step has kept.
type borrowed struct {
	leases []rdsd.Lease
	got    [][]byte // in place
	want   [][]byte
}

func (r *run) borrow(ctx context.Context, s *rdsd.Socket, st *step) error {
	b := &borrowed{}
	r.leases[st.As] = b
	var one [1]rdsd.Datagram
	for i := range r.number(st.Repeat, 1) {
		_, lease, err := s.Borrow(ctx, one[:])
		if err != nil {
			return err
		}
		b.leases = append(b.leases, lease)
		b.got = append(b.got, one[0].Payload)
		b.want = append(b.want, r.payload(st.Payload, i))
		if err := r.compare(one[0], st.From, st.Payload, i); err != nil {
			return fmt.Errorf("datagram %d: %w", i, err)
		}
	}
	return nil
}

func (b *borrowed) release() error {
	for i, got := range b.got {
		if !bytes.Equal(got, b.want[i]) {
			return fmt.Errorf("datagram %d of those borrowed has become %.40q", i, got)
		}
	}
	for _, l := range b.leases {
		l.Release()
	}
	return nil
}
