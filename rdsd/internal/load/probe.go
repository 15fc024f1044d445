package load

import (
	"context"
	"fmt"
	"time"

	"github.com/rdsd/rdsd/rdsd/internal/dial"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// Probe sends one datagram to where c sends, and returns what becomes of it: a run with answers has no outcomes, as
// they would be measured with it, so that it does not know why one is missing. The error is that of ctx when
// nothing was decided before it ended.
func Probe(ctx context.Context, client *rdsd.Client, c Config) (rdsd.Outcome, error) {
	c.Mode = OneWay
	t, err := newTask(ctx, client, &c, 0, time.Now(), nil)
	if err != nil {
		return rdsd.Outcome{}, err
	}
	defer t.sock.Close()
	p := make([]byte, HeaderBytes)
	header{kind: kindOneWay}.put(p, c.Verify)
	if err := t.sock.Send(ctx, c.To, p); err != nil {
		return rdsd.Outcome{}, fmt.Errorf("sending to %s: %w", c.To, dial.Cause(err))
	}
	for o, err := range t.sock.Outcomes(ctx) {
		return o, dial.Cause(err)
	}
	return rdsd.Outcome{}, ctx.Err()
}
