package plain

import (
	"testing"
	"time"
)

// TestBytes: sizes as people say them, at each change of the unit.
func TestBytes(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 1<<20 - 1: "1024.0 KiB", 1 << 20: "1.0 MiB", 1 << 30: "1.0 GiB", 1 << 40: "1.0 TiB",
		1 << 50: "1.0 PiB", 1<<64 - 1: "16384.0 PiB",
	} {
		if got := Bytes(float64(n)); got != want {
			t.Errorf("%d bytes: %q, want %q", n, got, want)
		}
	}
}

// TestDuration: of a time as much is shown as people read of it.
func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "-", 1: "1ns", 999: "999ns", 1249: "1.2µs", 1251: "1.3µs", 123456: "123.5µs",
		1234567: "1.23ms", 999994999: "999.99ms", 1249 * time.Millisecond: "1.2s", 59949 * time.Millisecond: "59.9s",
		90*time.Second + 499*time.Millisecond: "1m30s", 26*time.Hour + 501*time.Millisecond: "26h0m1s", -time.Second: "-1s",
	} {
		if got := Duration(d); got != want {
			t.Errorf("%d ns: %q, want %q", d, got, want)
		}
	}
}
