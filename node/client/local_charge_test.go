package client

import (
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/client/clienttest"
)

// TestPiecesGivenBack: what a message in pieces was charged is given back also
// when that message is the connection's last, being none.
func TestPiecesGivenBack(t *testing.T) {
	n, cfg := startClients(t)
	for range 3 {
		p := clienttest.DialPackets(t, cfg)
		p.Bind(clienttest.BindTo(cfg.RDS.Addresses[0], 0))
		if err := p.C.WriteMessage(make([]byte, 2<<20)); err != nil {
			t.Fatal(err)
		}
		for { // until the daemon has closed it
			if _, _, err := p.C.ReadMessage(); err != nil {
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
