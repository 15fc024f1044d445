package base

import (
	"runtime/debug"
	"strings"
)

// version may be set by the linker: -X github.com/rdsd/rdsd/node/base.version=1.2.3
var version = ""

// Version is the version of this program.
func Version() string {
	if version != "" {
		return version
	}
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" && b.Main.Version != "(devel)" {
		return strings.TrimPrefix(b.Main.Version, "v")
	}
	return "0.1.0-dev"
}
