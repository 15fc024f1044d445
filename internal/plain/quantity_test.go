package plain

import "testing"

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
