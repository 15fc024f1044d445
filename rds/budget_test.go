package rds

import "testing"

// Sends never take what a node needs to receive with.
func TestBudgetLeavesRoomToReceive(t *testing.T) {
	b := &Budget{Limit: 1000}
	for _, c := range []struct{ sending, held, room int64 }{
		{0, 0, 750}, {700, 0, 50}, {750, 0, 0}, {750, 250, 0}, {0, 250, 750}, {0, 600, 400}, {300, 600, 100}, {0, 1000, 0},
	} {
		b.sending.Store(c.sending)
		b.held.Store(c.held)
		if got := b.sendRoom(); got != int(c.room) {
			t.Errorf("%d sending, %d held: room to send %d, want %d", c.sending, c.held, got, c.room)
		}
		if free := int(1000 - c.sending - c.held); !b.fits(free) || b.fits(free+1) {
			t.Errorf("%d sending, %d held: %d may be received, and no more", c.sending, c.held, free)
		}
	}
}
