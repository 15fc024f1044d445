package cli

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// twentyQueued has 20 datagrams in each queue.
type twentyQueued struct{ source }

func (twentyQueued) Queue(_ context.Context, _ rdsd.QueueKind, limit uint32) ([]rdsd.QueuedDatagram, bool, error) {
	if limit == 0 {
		limit = 1000
	}
	n := min(limit, 20)
	return make([]rdsd.QueuedDatagram, n), n < 20, nil
}

// TestQueueLimitIsOfAll: --limit is of all kinds together.
func TestQueueLimitIsOfAll(t *testing.T) {
	for limit, want := range map[uint32]int{0: 40, 10: 10, 20: 20, 25: 25, 40: 40, 50: 40} {
		list, truncated, err := fetchQueue(t.Context(), twentyQueued{}, limit, rdsd.QueueSend, rdsd.QueueRecv)
		if err != nil || len(list) != want || truncated != (want < 40) {
			t.Errorf("limit %d: %d, truncated %v, %v", limit, len(list), truncated, err)
		}
	}
}

// heldUp has seven datagrams for a peer, all before one congested port, and two of another peer that wait for a link.
type heldUp struct{ source }

var (
	heldHere, heldPeer, otherPeer = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
)

func (heldUp) Peers(context.Context, rdsd.PeerFilter) ([]rdsd.Peer, error) {
	return []rdsd.Peer{{Local: heldHere, Remote: heldPeer, Held: 7}, {Local: heldHere, Remote: otherPeer, Queued: 2, QueuedBytes: 20}}, nil
}

func (heldUp) Sockets(context.Context) ([]rdsd.SocketInfo, error) { return nil, nil }

func (heldUp) Queue(_ context.Context, kind rdsd.QueueKind, _ uint32) (list []rdsd.QueuedDatagram, truncated bool, err error) {
	for range 7 {
		list = append(list, rdsd.QueuedDatagram{Queue: kind, Local: netip.AddrPortFrom(heldHere, 1), Remote: netip.AddrPortFrom(heldPeer, 2), Bytes: 100})
	}
	return list, false, nil
}

// TestQueueSummaryHasWhatIsHeld: what waits before a congested port is the first thing that is looked for.
func TestQueueSummaryHasWhatIsHeld(t *testing.T) {
	for _, kinds := range [][]rdsd.QueueKind{nil, {rdsd.QueueSend}} {
		list, err := sumQueues(t.Context(), heldUp{}, kinds)
		want := []queueSum{{rdsd.QueueSend, "10.0.0.1", "10.0.0.2", 7, 700}, {rdsd.QueueSend, "10.0.0.1", "10.0.0.3", 2, 20}}
		if err != nil || !slices.Equal(list, want) {
			t.Errorf("%v: %+v, %v, want %+v", kinds, list, err, want)
		}
	}
	if list, err := sumQueues(t.Context(), heldUp{}, []rdsd.QueueKind{rdsd.QueueRecv}); len(list) > 0 || err != nil {
		t.Errorf("recv: %+v, %v", list, err)
	}
}
