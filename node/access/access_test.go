package access

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdserr"
)

// Who is at the other end is what the kernel says of a Unix socket; of anything else nobody knows, so that it is nobody, from afar.
func TestIdentify(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	nobody := config.Identity{UID: config.NobodyID, GID: config.NobodyID, Remote: true}
	if id, err := Identify(a); id != nobody || err != nil {
		t.Errorf("a pipe: %+v, %v", id, err)
	}

	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	me := config.Identity{UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), PID: int32(os.Getpid())}
	if id, err := Identify(s); id != me || err != nil {
		t.Errorf("a socket: %+v, %v; want %+v", id, err, me)
	}
	s.Close()
	if id, err := Identify(s); err == nil {
		t.Errorf("a closed socket: %+v", id)
	}
}

func TestClientTable(t *testing.T) {
	memory := quota.New(16<<20, nil)
	tab := NewClients(3, 2, memory, nil)
	accounts := map[uint32]*quota.Account{}
	a, b := config.Identity{UID: 1}, config.Identity{UID: 2}
	for _, step := range []struct {
		id config.Identity
		ok bool
	}{{a, true}, {a, true}, {a, false}, {b, true}, {b, false}} {
		account, err := tab.Add(step.id, 1000)
		if account != nil {
			accounts[step.id.UID] = account
		}
		if (err == nil) != step.ok {
			t.Errorf("add %d: %v", step.id.UID, err)
		} else if err != nil && !errors.Is(err, rdserr.ErrTooMany) {
			t.Errorf("%v is not EMFILE", err)
		}
	}
	if u := memory.Used(); u != 3000 {
		t.Errorf("three connections of 1,000 bytes are charged with %d", u)
	}
	tab.Remove(a, accounts[1], 1000)
	tab.Remove(a, accounts[1], 1000)
	tab.Remove(b, accounts[2], 1000)
	if u := memory.Used(); u != 0 || len(memory.Holders()) != 0 {
		t.Errorf("%d bytes are charged to nobody's connections, holders %v", u, memory.Holders())
	}
	if _, err := tab.Add(a, 15<<20); !errors.Is(err, rdserr.ErrNoMemory) || len(memory.Holders()) != 0 {
		t.Errorf("a connection that memory has no room for: %v", err)
	}
	if tab.Len() != 0 || len(tab.byUser) != 0 {
		t.Errorf("%d left, table %v", tab.Len(), tab.byUser)
	}
}

func TestLimiterTableIsBounded(t *testing.T) {
	l := NewLimiter(1, 1)
	now := time.Unix(1000, 0)
	for uid := range uint32(3 * maxLimitedUIDs) {
		l.Allow(uid, now)
	}
	if len(l.users) > maxLimitedUIDs {
		t.Errorf("%d users kept, want at most %d", len(l.users), maxLimitedUIDs)
	}
	if l.Allow(1<<20, now) {
		t.Error("users beyond the table are not limited")
	}
	if later := now.Add(time.Minute); !l.Allow(1<<21, later) || len(l.users) != 1 {
		t.Errorf("quiet users are not forgotten: %d left", len(l.users))
	}
}
