package rtrs

import (
	"testing"
	"unsafe"
)

// TestConPlaceBytes: a path is charged with what it takes for each connection that is announced.
func TestConPlaceBytes(t *testing.T) {
	if n := unsafe.Sizeof(serverCon{}); n != ConPlaceBytes {
		t.Errorf("a place takes %d bytes, %d are said", n, ConPlaceBytes)
	}
}
