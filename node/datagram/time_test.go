package datagram

import (
	"math/rand"
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/rds"
)

// TestEngineTime: the engine's time never goes back, though a step on a reactor's
// thread has the time of its turn's start and others have looked since.
func TestEngineTime(t *testing.T) {
	c := rds.DefaultConfig()
	h := &Local{all: &Host{machine: Machine{Clock: reactor.Clock}}, e: rds.NewEngine(&c, netip.MustParseAddr("10.0.0.1"), rand.New(rand.NewSource(1)))}
	_, a := h.Lock()
	h.mu.Unlock()
	if _, b := h.LockAt(a - time.Second); b != a {
		t.Errorf("a step a second late has the time %v, want that of the one before, %v", b, a)
	}
	h.mu.Unlock()
	if _, b := h.LockAt(a + time.Second); b != a+time.Second {
		t.Errorf("a later step has the time %v, want %v", b, a+time.Second)
	}
	h.mu.Unlock()
}
