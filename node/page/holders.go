package page

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rdsd/rdsd/node/config"
)

// holders knows for a moment which users have a process in a group.
//
// The daemon is a program without libc, so that it knows of users and groups what is in
// /etc/passwd and /etc/group: nothing of those of LDAP, nor of those that systemd makes for
// a unit (DynamicUser=). At the API's socket none of that counts, but the groups of the
// process. So whoever is in no file is looked for among the processes: all are read at
// once, and seldom, so that many users who ask cost no more than one.
type holders struct {
	mu   sync.Mutex
	at   time.Time       // guarded by mu; when they were read
	uids map[uint32]bool // guarded by mu
}

// has tells whether uid has a process in the group.
func (h *holders) has(uid uint32, gid int, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.uids == nil || now.Sub(h.at) >= groupsAge {
		h.uids, h.at = readHolders("/proc", gid), now
	}
	return h.uids[uid]
}

// readHolders returns the users of whom a process in proc is in the group. Processes that
// are hidden (hidepid) or have ended are in none.
func readHolders(proc string, gid int) map[uint32]bool {
	uids := map[uint32]bool{}
	d, err := os.Open(proc)
	if err != nil {
		return uids
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1) // those that were read
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' {
			continue
		}
		b, err := os.ReadFile(filepath.Join(proc, name, "status"))
		if err != nil {
			continue
		}
		if uid, ok := holder(string(b), gid); ok {
			uids[uid] = true
		}
	}
	return uids
}

// holder returns whose a process is, from its status (proc_pid_status(5)), if its user may
// do what the group may. A process with several users has the groups of another one, and
// one with several groups what its program was given (setuid, setgid): they say nothing of
// their user. The name of the program cannot add lines: the kernel writes its own as \n.
func holder(status string, gid int) (uid uint32, ok bool) {
	has := map[string][]string{}
	for line := range strings.Lines(status) {
		key, v, _ := strings.Cut(line, ":")
		has[key] = strings.Fields(v)
	}
	users, groups, want := has["Uid"], has["Gid"], strconv.Itoa(gid)
	if !same(users) || !slices.Contains(has["Groups"], want) && (!same(groups) || groups[0] != want) {
		return 0, false
	}
	n, err := strconv.ParseUint(users[0], 10, 32)
	// A number that stands for all users that have none here is nobody's.
	return uint32(n), err == nil && n != config.NobodyID
}

// same tells whether the real, effective, saved and file system's number are one.
func same(n []string) bool {
	return len(n) == 4 && len(slices.Compact(slices.Clone(n))) == 1
}
