package access

import (
	"os"
	"strconv"
	"strings"
)

// Program is what the kernel calls a process, which is for people to read: every
// process may call itself what it likes. It is empty when that cannot be told.
func Program(pid uint32) string {
	if pid == 0 {
		return "" // of another pid namespace
	}
	b, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(pid), 10) + "/comm")
	if err != nil {
		return ""
	}
	// The kernel keeps 15 bytes of a name, which may end within a character.
	return strings.ToValidUTF8(strings.TrimSuffix(string(b), "\n"), "\uFFFD")
}
