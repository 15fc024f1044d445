package datagram

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/transport"
)

// silentLink is a link of somebody who says nothing.
type silentLink struct {
	transport.Link
	closed bool
}

func (l *silentLink) RemoteAddr() netip.AddrPort { return netip.AddrPort{} }
func (l *silentLink) Close()                     { l.closed = true }
func (l *silentLink) Abort()                     { l.closed = true }

// What is in the middle of a payload is closed when nothing more of it comes,
// and when it takes too long; what goes on is let be.
func TestPartialPayloadsEnd(t *testing.T) {
	h := &Local{log: slog.New(slog.DiscardHandler)}
	now := time.Now()
	links := map[string]*silentLink{"silent": {}, "drips": {}, "goes on": {}}
	var p partials
	p.links = map[*laneLink]*partial{}
	for name, x := range map[string]*partial{
		"silent":  {since: now.Add(-time.Minute), seen: now.Add(-time.Minute)},
		"drips":   {since: now.Add(-2 * partialMost), seen: now},
		"goes on": {since: now.Add(-time.Minute), seen: now},
	} {
		p.links[&laneLink{h: h, link: links[name]}] = x
	}
	p.sweep(now, 20*time.Second)
	if !links["silent"].closed || !links["drips"].closed || links["goes on"].closed {
		t.Errorf("closed: silent %v, drips %v, goes on %v", links["silent"].closed, links["drips"].closed, links["goes on"].closed)
	}
}
