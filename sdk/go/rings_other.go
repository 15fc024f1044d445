//go:build !(linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64))

package rdsd

import (
	"context"
	"runtime"

	"github.com/rdsd/rdsd/rdserr"
)

// Rings are for 64-bit little-endian Linux (docs/shm.md).

func (s *Socket) openRings(context.Context, string) (link, error) {
	return nil, noRings{rdserr.With(rdserr.ErrNotSupported, "no rings on %s/%s", runtime.GOOS, runtime.GOARCH)}
}

type ringSlot struct{}
