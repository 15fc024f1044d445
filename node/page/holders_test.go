package page

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/node/config"
)

// status is what the kernel says of a process, of the users, groups and further groups given.
func status(uid, gid, groups string) string {
	return "Name:\tcat\nState:\tS (sleeping)\nPid:\t7\nUid:\t" + uid + "\nGid:\t" + gid + "\nFDSize:\t64\nGroups:\t" + groups + " \nVmRSS:\t 100 kB\n"
}

// TestHolder: a process tells of its user that it is in a group if it has it among its further
// groups or as its only one, and has one user; not if its program was given either.
func TestHolder(t *testing.T) {
	const one, own = "1000\t1000\t1000\t1000", "50\t50\t50\t50"
	for _, c := range []struct {
		name, status string
		want         bool
	}{
		{"a further group", status(one, own, "7 900 12"), true},
		{"its own group", status(one, "900\t900\t900\t900", ""), true},
		{"other groups", status(one, own, "90 9000"), false},
		{"no further group", status(one, own, ""), false},
		{"a program with the setgid bit", status(one, "50\t900\t900\t900", ""), false},
		{"one with the setuid bit, of a member", status("1001\t1000\t1000\t1000", own, "900"), false},
		{"a user without a number here", status("65534\t65534\t65534\t65534", own, "900"), false},
		{"a number of no user", status("x\tx\tx\tx", own, "900"), false},
		{"too few users", status("1000", own, "900"), false},
		{"nothing", "", false},
	} {
		if uid, ok := holder(c.status, 900); ok != c.want || ok && uid != 1000 {
			t.Errorf("%s: user %d, %v", c.name, uid, ok)
		}
	}
}

// TestReadHolders: all processes are looked at; one that has ended or is hidden is passed over.
func TestReadHolders(t *testing.T) {
	proc := t.TempDir()
	for name, text := range map[string]string{
		"1":       status("1\t1\t1\t1", "1\t1\t1\t1", "900"),
		"22":      status("2\t2\t2\t2", "1\t1\t1\t1", "901"),
		"333":     status("3\t3\t3\t3", "1\t1\t1\t1", "900"),
		"self":    status("4\t4\t4\t4", "1\t1\t1\t1", "900"),
		"4444":    "", // has no such file
		"version": "",
	} {
		if err := os.Mkdir(filepath.Join(proc, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if text == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(proc, name, "status"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := slices.Sorted(maps.Keys(readHolders(proc, 900))); !slices.Equal(got, []uint32{1, 3}) {
		t.Errorf("users %v have a process in the group", got)
	}
	if got := readHolders(filepath.Join(proc, "none"), 900); len(got) != 0 {
		t.Errorf("without processes: %v", got)
	}
}

// TestHoldersAreReadSeldom: whoever asks, the processes are read anew only when what was read is old.
func TestHoldersAreReadSeldom(t *testing.T) {
	now := time.Unix(1000, 0)
	h := holders{at: now, uids: map[uint32]bool{54321: true}}
	if !h.has(54321, 54323, now.Add(groupsAge-1)) || h.has(54322, 54323, now.Add(groupsAge-1)) || !h.at.Equal(now) {
		t.Error("they were read again")
	}
	if h.has(54321, 54323, now.Add(groupsAge)) || !h.at.Equal(now.Add(groupsAge)) {
		t.Error("what was read is believed for too long")
	}
}

// TestMemberByProcess: a user who is in no file is a member while a process of his has the group.
func TestMemberByProcess(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root starts processes of other users")
	}
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip(err)
	}
	const uid = 54321
	c := exec.Command(sleep, "60")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: 54322, Groups: []uint32{54323}}}
	if err := c.Start(); err != nil {
		t.Skip(err)
	}
	end := sync.OnceFunc(func() { c.Process.Kill(); c.Wait() })
	defer end()
	member := func(gid int) bool {
		return new(groupCache).member(uid, fmt.Sprint(gid), time.Unix(1000, 0))
	}
	if !member(54323) || !member(54322) || member(54324) {
		t.Errorf("of the further group %v, of its own %v, of another %v", member(54323), member(54322), member(54324))
	}
	conf := config.Default()
	conf.API.SocketGroup = "54323"
	p := &Page{Deps: Deps{Conf: func() *config.Config { return conf }}}
	if err := p.mayLook(config.Identity{UID: uid, GID: config.NobodyID}, nil); err != nil {
		t.Error(err)
	}
	end()
	if member(54323) {
		t.Error("the process has ended, and its user is a member")
	}
}
