package shm_test

import (
	"testing"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/shm"
)

func TestReasons(t *testing.T) {
	for why := conn.WhyNone; why <= conn.WhyAddressLost; why++ {
		if got := shm.Reason(uint8(why)); got != why.String() {
			t.Errorf("reason %d: %q, conn calls it %q", why, got, why)
		}
	}
	if got := shm.Reason(255); got != "" {
		t.Errorf("reason 255: %q", got)
	}
}
