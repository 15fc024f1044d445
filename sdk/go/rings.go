package rdsd

import (
	"context"
	"net/netip"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

type rings struct{ *Socket }
type held struct{}
type ringSlot struct{}

func (h *held) release(uint64) {}

func newRings(s *Socket, path string) *rings { return &rings{s} }

var errNoRings = noRings{rdserr.ErrNotSupported}

func (r *rings) kind() FrontEnd                              { return Rings }
func (r *rings) connect(context.Context) (link, error)       { return nil, errNoRings }
func (r *rings) startLocked(link)                            {}
func (r *rings) dropLocked(link, error)                      {}
func (r *rings) finishLocked(error)                          {}
func (r *rings) tellLocked(*rdsdv1.ClientMessage)            {}
func (r *rings) push()                                       {}
func (r *rings) addRequest(*requestWaiter)                   {}
func (r *rings) removeRequest(*requestWaiter)                {}
func (r *rings) outcomesRead()                               {}
func (r *rings) abort(*Slot)                                 {}
func (r *rings) commit(*Slot, int) (uint64, error)           { return 0, errNoRings }
func (r *rings) awaitOutcome(context.Context) error          { return errNoRings }
func (r *rings) peekSize(context.Context) (int, bool, error) { return 0, false, errNoRings }
func (r *rings) awaitCongestion(context.Context, *watcher) error {
	return errNoRings
}
func (r *rings) awaitReply(context.Context, *requestWaiter) error {
	return errNoRings
}
func (r *rings) sendOne(context.Context, string, netip.AddrPort, []byte, bool) (uint64, error) {
	return 0, errNoRings
}
func (r *rings) sendBatch(context.Context, string, []Datagram, bool) (int, error) {
	return 0, errNoRings
}
func (r *rings) reserve(context.Context, netip.AddrPort, int) (*Slot, error) { return nil, errNoRings }
func (r *rings) receive(context.Context, []Datagram, bool) (int, Lease, error) {
	return 0, Lease{}, errNoRings
}
