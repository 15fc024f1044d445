package config

import (
	"strings"
	"testing"
)

// TestReactorProcessors: reactor.cpus may name 64 processors, as reactor.threads may ask
// for as many threads, and no more.
func TestReactorProcessors(t *testing.T) {
	for _, n := range []int{64, 65} {
		c := Default()
		for i := range n {
			c.Reactor.CPUs = append(c.Reactor.CPUs, i%2)
		}
		err := c.Validate()
		if refused := err != nil && strings.Contains(err.Error(), "are too many"); refused != (n > 64) {
			t.Errorf("%d processors: %v", n, err)
		}
	}
}
