package rnbd

import (
	"testing"
	"time"
)

// TestAsksShareAGrid: volumes that were opened at any time are asked for at 16 moments in AskEvery, none before
// that has passed, so that the shell is woken for many at once.
func TestAsksShareAGrid(t *testing.T) {
	const every = 5 * time.Second
	v := &Volume{c: &Client{cfg: ClientConfig{AskEvery: every}}}
	moments := map[time.Duration]bool{}
	for now := time.Duration(0); now < every; now += 7 * time.Millisecond {
		at := v.askFrom(now)
		if at < now+every || at >= now+every+every/16 {
			t.Fatalf("at %v: asked again at %v", now, at)
		}
		moments[at] = true
	}
	if len(moments) > 17 {
		t.Errorf("%d moments in %v", len(moments), every)
	}
	v.c.cfg.AskEvery = -1
	if at := v.askFrom(0); at != Never {
		t.Errorf("without asking: at %v", at)
	}
	v.c.cfg.AskEvery = 3 // as short as a test may have it
	if at := v.askFrom(10); at != 13 {
		t.Errorf("at %v", at)
	}
}
