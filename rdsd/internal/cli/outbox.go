package cli

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/rdsd/rdsd/rdsd/internal/dial"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// outbox hands datagrams over in batches, or alone when each has its moment.
type outbox struct {
	a     *app
	sock  *rdsd.Socket
	dst   netip.AddrPort
	try   bool
	alone bool
	rep   *sendReport

	batch []rdsd.Datagram
	bytes int
	left  uint64 // that came and will not be handed over, beside those of batch
}

const (
	outboxDatagrams = 64
	outboxBytes     = 256 << 10
)

func (o *outbox) add(ctx context.Context, p []byte) error {
	o.batch = append(o.batch, rdsd.Datagram{Addr: o.dst, Payload: p})
	o.bytes += len(p)
	if o.alone || len(o.batch) >= outboxDatagrams || o.bytes >= outboxBytes {
		return o.flush(ctx)
	}
	return nil
}

func (o *outbox) flush(ctx context.Context) error {
	if len(o.batch) == 0 {
		return nil
	}
	batch := o.batch
	o.batch, o.bytes = nil, 0
	if o.try {
		if err := o.sock.TrySend(o.dst, batch[0].Payload); err != nil {
			return fmt.Errorf("%s refused a datagram of %d bytes: %w", o.dst, len(batch[0].Payload), dial.Cause(err))
		}
		o.count(batch)
		return nil
	}
	bctx, cancel := o.a.bounded(ctx)
	defer cancel()
	accepted, err := o.sock.SendBatch(bctx, batch)
	if err == nil {
		o.count(batch)
		return nil
	}
	refused := map[int]bool{}
	if b, ok := errors.AsType[*rdsd.BatchError](err); ok {
		for _, d := range b.Errors {
			refused[d.Index] = true
		}
		err = b.Errors[0].Err
	}
	var in []rdsd.Datagram
	for i, d := range batch {
		if !refused[i] && len(in) < accepted {
			in = append(in, d)
		}
	}
	o.count(in)
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	return fmt.Errorf("%s to %s not accepted: %w", plural(uint64(len(batch)-accepted), "datagram"), o.dst, dial.Cause(err))
}

func (o *outbox) count(ds []rdsd.Datagram) {
	o.rep.Datagrams += uint64(len(ds))
	for _, d := range ds {
		o.rep.Bytes += bytesCount(len(d.Payload))
	}
}
