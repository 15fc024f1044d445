package volume

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestChunksCostWhatIsTouched(t *testing.T) {
	page := unix.Getpagesize()
	b := allocChunks(64 << 20)
	if b == nil {
		t.Fatal("no memory")
	}
	defer freeChunks(b)
	if n := residentBytes(b); n != 0 {
		t.Fatalf("%d bytes in memory before the first was touched", n)
	}
	for i := range 8 {
		b[i*page] = 1
	}
	if n := residentBytes(b); n != uint64(8*page) {
		t.Fatalf("%d bytes in memory, 8 pages were touched", n)
	}
	trimChunks(b[page/2 : 3*page+page/2]) // whole pages in it: 1 and 2
	if n := residentBytes(b); n != uint64(6*page) || b[0] != 1 || b[page] != 0 || b[3*page] != 1 {
		t.Fatalf("%d bytes in memory after 2 of 8 pages were given back", n)
	}
	trimChunks(b[1:10])
	trimChunks(nil)
	if n := residentBytes(nil); n != 0 {
		t.Errorf("%d bytes of nothing are in memory", n)
	}
	if b[0] != 1 {
		t.Fatal("part of a page was given back")
	}
}
