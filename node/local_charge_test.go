package node

import (
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/quota"
)

// TestPiecesGivenBack: what a message in pieces was charged is given back also
// when that message is the connection's last, being none.
func TestPiecesGivenBack(t *testing.T) {
	n, cfg := startOne(t)
	for range 3 {
		p := dialPackets(t, cfg)
		p.bind(bindTo(cfg.RDS.Addresses[0], 0))
		if err := p.c.WriteMessage(make([]byte, 2<<20)); err != nil {
			t.Fatal(err)
		}
		for { // until the daemon has closed it
			if _, _, err := p.c.ReadMessage(); err != nil {
				break
			}
		}
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		used := n.deps.Memory.Kinds()[quota.Control].Used
		if used == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d bytes are still charged for control messages", used)
		}
	}
}
