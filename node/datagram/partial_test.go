package datagram

import (
	"log/slog"
	"testing"
	"time"
)

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
