package base

import (
	"runtime/debug"
	"strings"
	"sync"
)

// version may be set by the linker: -X github.com/rdsd/rdsd/node/base.version=1.2.3
var version = ""

// Version is the version of this program.
func Version() string {
	if version != "" {
		return version
	}
	return built()
}

// built is read once: it is parsed out of a text of some KiB, and each socket is told it.
var built = sync.OnceValue(func() string {
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" && b.Main.Version != "(devel)" {
		return strings.TrimPrefix(b.Main.Version, "v")
	}
	return "0.1.0-dev"
})
