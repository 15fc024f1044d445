package node

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/config"
)

func TestTuneMemory(t *testing.T) {
	percent, limit := debug.SetGCPercent(100), debug.SetMemoryLimit(-1)
	defer func() { debug.SetGCPercent(percent); debug.SetMemoryLimit(limit); whole.Store(false) }()
	cfg := config.Default()
	t.Setenv("GOGC", "100")
	t.Setenv("GOMEMLIMIT", "off")
	TuneMemory(cfg)
	if p := debug.SetGCPercent(100); p != 100 || debug.SetMemoryLimit(-1) != limit {
		t.Errorf("the environment did not win: %d%%", p)
	}
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	defer tuned.Store(0)
	TuneMemory(cfg)
	if got, want := debug.SetMemoryLimit(-1), goLimit(int64(cfg.Limits.MemoryBytes), 0, 0, 0, 0); got != want {
		t.Errorf("limit %d, want %d", got, want)
	}
	if p := debug.SetGCPercent(100); p != gcPercent {
		t.Errorf("GC percent %d, want %d", p, gcPercent)
	}
}

// TestGarbageIsBounded: what Go may have beside what is charged does not grow with the
// room there is, and its limit is never above the room, but for the least of all: below that
// the collector would run without an end.
func TestGarbageIsBounded(t *testing.T) {
	const limit = 256 << 20
	for held := int64(0); held <= limit; held += 8 << 20 {
		for foreign := int64(0); foreign <= limit; foreign += 8 << 20 {
			l := goLimit(limit, foreign, held, 0, 0)
			if l < 16<<20 {
				t.Fatalf("%d MiB held, %d MiB not Go's: limit %d MiB", held>>20, foreign>>20, l>>20)
			}
			if room := int64(limit - limit/8 + memorySlack - memoryReserve - foreign); l > max(room, 16<<20) {
				t.Fatalf("%d MiB held, %d MiB not Go's: limit %d MiB, room for %d", held>>20, foreign>>20, l>>20, room>>20)
			}
			if garbage := l - held - programHeap; garbage > limit/2 {
				t.Fatalf("%d MiB held, %d MiB not Go's: %d MiB of garbage", held>>20, foreign>>20, garbage>>20)
			}
		}
	}
}

// TestGarbageHasRoom: what is charged and what the program itself needs comes first; beside
// that garbage has three eighths of the limit, as far as there is room.
func TestGarbageHasRoom(t *testing.T) {
	const limit, room = 256 << 20, 256<<20*7/8 + memorySlack - memoryReserve
	for _, c := range []struct{ foreign, held, want int64 }{
		{0, 0, programHeap + 96<<20}, {0, 8 << 20, 8<<20 + programHeap + 96<<20},
		{0, limit, room}, {64 << 20, limit, room - 64<<20}, {limit, limit, 16 << 20},
	} {
		if got := goLimit(limit, c.foreign, c.held, 0, 0); got != min(c.want, room) {
			t.Errorf("%d MiB held, %d MiB not Go's: limit %d, want %d", c.held>>20, c.foreign>>20, got, c.want)
		}
	}
}

// TestChunksAreRationed: with what Go may take, all other memory, and what is granted to
// chunks, the process stays below its bound at every state of all three; and where there
// is room a whole ration is granted.
func TestChunksAreRationed(t *testing.T) {
	const limit = 256 << 20
	const bound = limit + memorySlack - memoryReserve
	for own := int64(0); own <= bound+32<<20; own += 8 << 20 {
		for chunks := int64(0); chunks <= limit/2; chunks += 8 << 20 {
			resident := own + chunks
			low, upTo := granted(limit, resident, chunks)
			if low < chunks || upTo < low || upTo-chunks > ration(limit) {
				t.Fatalf("Go %d MiB, chunks %d MiB: they may grow to %d, and ask from %d on", own>>20, chunks>>20, upTo, low)
			}
			if grown := own + upTo; grown > bound && upTo > chunks && upTo > chunksLeast {
				t.Fatalf("Go %d MiB, chunks %d MiB: %d MiB more bring the process to %d MiB of %d", own>>20, chunks>>20, (upTo-chunks)>>20, grown>>20, int64(bound)>>20)
			}
			if l := goLimit(limit, chunks, limit, 0, upTo-chunks); own <= l && l > 16<<20 && upTo-chunks != ration(limit) {
				t.Fatalf("Go holds %d MiB of %d, chunks %d MiB, and %d MiB more are granted", own>>20, l>>20, chunks>>20, (upTo-chunks)>>20)
			}
		}
	}
}

// TestTheCollectorHasWhatItNeeds: where clients and peers hold all they may, Go's limit is what the collector
// needs, out of the reserve, but for its last part; and with what is not Go's and what chunks are
// granted the process stays below its bound.
func TestTheCollectorHasWhatItNeeds(t *testing.T) {
	const limit, mib = 256 << 20, 1 << 20
	for _, c := range []struct {
		what                                string
		foreign, held, needs, granted, want int64
	}{
		{"room is more than is needed", 100 * mib, 100 * mib, 120 * mib, 32 * mib, 140 * mib},
		{"more is needed than there is room", 150 * mib, 100 * mib, 110 * mib, 32 * mib, 110 * mib},
		{"as much as is left", 150 * mib, 100 * mib, 200 * mib, 32 * mib, 122 * mib},
		{"as much as is left when nothing is granted", 150 * mib, 100 * mib, 200 * mib, 0, 154 * mib},
		{"little is charged and much lives", 0, 0, 140 * mib, 32 * mib, 140 * mib},
		{"nothing is left", 300 * mib, 0, 100 * mib, 0, 16 * mib},
	} {
		if got := goLimit(limit, c.foreign, c.held, c.needs, c.granted); got != c.want {
			t.Errorf("%s: %d MiB, want %d", c.what, got/mib, c.want/mib)
		}
	}
	for foreign := int64(0); foreign <= limit; foreign += 8 * mib {
		for own := int64(0); own <= limit; own += 8 * mib {
			low, upTo := granted(limit, foreign+own, 0)
			l := goLimit(limit, foreign, limit, 1<<40, upTo)
			if whole := foreign + l + upTo; l > 16*mib && whole > limit+memorySlack-memoryLast {
				t.Fatalf("%d MiB are not Go's, Go has %d and may have %d, chunks are granted %d (asked for from %d on): %d MiB", foreign/mib, own/mib, l/mib, upTo/mib, low/mib, whole/mib)
			}
		}
	}
}

// TestNeeds: what lives, and half of that or 16 MiB for garbage, with what the heap's pages do not hold.
func TestNeeds(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		use  goUse
		want int64
	}{
		{goUse{}, 17 * mib},
		{goUse{live: 4 * mib, beside: 3 * mib}, (4 + 16 + 1 + 3) * mib},
		{goUse{live: 100 * mib, beside: 20 * mib}, 150*mib + 150*mib/100*3 + 20*mib},
	} {
		if got := c.use.needs(); got != c.want {
			t.Errorf("%+v: %d, want %d", c.use, got, c.want)
		}
	}
	ballast := make([]byte, 8*mib)
	runtime.GC()
	if u := readGoUse(); u.live < 8*mib || u.all < u.live+u.beside || u.beside == 0 {
		t.Errorf("with %d bytes in use: %+v", len(ballast), u)
	}
	runtime.KeepAlive(ballast)
}

// TestExampleVolumesFit: what the example exports of memory can be written in whole.
func TestExampleVolumesFit(t *testing.T) {
	c, err := config.Load(config.LoadOptions{File: "../docs/rdsd.example.toml"})
	if err != nil {
		t.Fatal(err)
	}
	account, some := quota.New(int64(c.Limits.MemoryBytes), nil).Account(quota.Holder{}), false
	for _, x := range c.Volumes.Exports {
		if x.Path == "" {
			some = true
			if err := account.Take(quota.Stores, int64(x.Size)); err != nil {
				t.Errorf("%s of %v: %v", x.Name, x.Size, err)
			}
		}
	}
	if !some {
		t.Error("the example exports no memory")
	}
}
