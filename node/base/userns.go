package base

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/rdsd/rdsd/node/config"
)

// In a user namespace, as containers may have one, the kernel tells of users and groups that
// have no number there one and the same: the overflow number, 65534 unless a sysctl says
// otherwise. Two strangers have it, and so may the daemon's own user or one that the
// configuration names: it says of nobody who that is.

// ForeignUser reports whether uid, of the kernel, stands for all users that have no number in
// this process's user namespace.
func ForeignUser(uid uint32) bool { return foreignUser().is(uid) }

// ForeignGroup is ForeignUser of a group.
func ForeignGroup(gid uint32) bool { return foreignGroup().is(gid) }

var (
	foreignUser  = sync.OnceValue(func() foreign { return readForeign("uid", os.ReadFile) })
	foreignGroup = sync.OnceValue(func() foreign { return readForeign("gid", os.ReadFile) })
)

// foreign is a number that stands for whoever has none here, if there is anybody.
type foreign struct {
	some   bool
	number uint32
}

func (f foreign) is(id uint32) bool { return f.some && id == f.number }

// allIDs is how many users, or groups, a kernel tells apart: the largest number is none's.
const allIDs = 1<<32 - 1

// readForeign finds out the number of a kind, "uid" or "gid". Where the kernel does not say which
// numbers there are here, some may be missing.
func readForeign(kind string, read func(string) ([]byte, error)) foreign {
	ids, err := read("/proc/self/" + kind + "_map")
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := read("/proc/self/status"); err == nil {
			return foreign{} // a kernel without user namespaces
		}
	}
	var have uint64
	for line := range bytes.Lines(ids) {
		var inside, outside, n uint64
		if _, err := fmt.Sscan(string(line), &inside, &outside, &n); err == nil {
			have += n
		}
	}
	if have >= allIDs {
		return foreign{}
	}
	f := foreign{true, config.NobodyID}
	text, _ := read("/proc/sys/kernel/overflow" + kind)
	if n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32); err == nil {
		f.number = uint32(n)
	}
	return f
}
