package cli

import (
	"context"
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
