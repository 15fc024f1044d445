package access

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdserr"
)

// TestLimiter: each user has calls of its own, so many at once and so many a second, as
// they are set now, also those that were known before.
func TestLimiter(t *testing.T) {
	l := NewLimiter(2, 3)
	now := time.Unix(1000, 0)
	burst := func(uid uint32) (n int) {
		for l.Allow(uid, now) {
			if n++; n > 100 {
				t.Fatal("there is no limit")
			}
		}
		return n
	}
	if a, b, again := burst(1), burst(2), burst(1); a != 3 || b != 3 || again != 0 {
		t.Errorf("at once %d, another user %d, and then %d", a, b, again)
	}
	now = now.Add(time.Second)
	if n := burst(1); n != 2 {
		t.Errorf("a second later %d", n)
	}
	l.Set(10, 20)
	if r, b := l.Limits(); r != 10 || b != 20 {
		t.Errorf("set are %v and %d", r, b)
	}
	// What is set holds for those that are known as for others, from that moment on, which
	// is the clock's.
	l = NewLimiter(2, 3)
	now = time.Now()
	burst(1)
	l.Set(10, 20)
	now = time.Now().Add(time.Second)
	if a, c := burst(1), burst(3); a < 10 || a > 20 || c != 20 {
		t.Errorf("a second after they were set: %d of one that was known, %d of a new one", a, c)
	}
	count := &base.Counters{}
	err := l.Refusal(7, count)
	if !errors.Is(err, rdserr.ErrRateLimited) || !strings.Contains(err.Error(), "uid 7 makes more than 10 calls") || count.CallsRateLimited.Load() != 1 {
		t.Errorf("%v, counted %d times", err, count.CallsRateLimited.Load())
	}
}

// TestLimiterForgetsTheQuiet: when the table is full whoever could make all its calls at
// once is forgotten, and nobody else; those that find no place share one bucket, whose
// limits are set with the others'.
func TestLimiterForgetsTheQuiet(t *testing.T) {
	l := NewLimiter(1, 2)
	now := time.Unix(1000, 0)
	for uid := range uint32(maxLimitedUIDs) {
		l.Allow(uid, now)
		if uid >= 10 {
			l.Allow(uid, now) // these have spent both
		}
	}
	if len(l.users) != maxLimitedUIDs {
		t.Fatalf("%d users are known", len(l.users))
	}
	now = now.Add(time.Second) // the first ten have both again, the others one
	if !l.Allow(5000, now) || len(l.users) != maxLimitedUIDs-10+1 {
		t.Errorf("%d users are known", len(l.users))
	}
	if l.users[10] == nil || l.users[9] != nil || l.users[5000] == nil {
		t.Error("not those that were quiet are forgotten")
	}
	for uid := range uint32(9) {
		l.Allow(6000+uid, now)
		l.Allow(6000+uid, now)
	}
	if len(l.users) != maxLimitedUIDs {
		t.Fatalf("%d users are known", len(l.users))
	}
	if a, b, c := l.Allow(7000, now), l.Allow(7001, now), l.Allow(7002, now); !a || !b || c || len(l.users) != maxLimitedUIDs {
		t.Errorf("of three users without a place: %v, %v, %v; %d are known", a, b, c, len(l.users))
	}
	l.Set(4, 5)
	if r, b := l.shared.Limit(), l.shared.Burst(); r != 4 || b != 5 {
		t.Errorf("users without a place make %v calls a second, %d at once", r, b)
	}
}

// TestClientsRefused: each kind of refusal says which limit it was, is told and counted
// once, and leaves nothing charged; limits that are set hold for who comes, and nobody
// who is there goes.
func TestClientsRefused(t *testing.T) {
	memory := quota.New(16<<20, nil)
	var told []error
	tab := NewClients(2, 1, memory, func(id config.Identity, err error) {
		if id.UID == 0 {
			t.Error("a refusal is told of nobody")
		}
		told = append(told, err)
	})
	a, b, c := config.Identity{UID: 1}, config.Identity{UID: 2}, config.Identity{UID: 3}
	add := func(id config.Identity) *quota.Account {
		t.Helper()
		account, err := tab.Add(id, 100)
		if err != nil {
			t.Fatal(err)
		}
		return account
	}
	refused := func(id config.Identity, size int64, sentinel error, text string) {
		t.Helper()
		used, n, before := memory.Used(), len(told), tab.Budget()
		account, err := tab.Add(id, size)
		if account != nil || !errors.Is(err, sentinel) || !strings.Contains(err.Error(), text) {
			t.Errorf("uid %d: %v, want %q", id.UID, err, text)
		}
		if len(told) != n+1 || told[n] != err || memory.Used() != used || tab.Len() != int(before.Used) {
			t.Errorf("%v: told %d times, %d bytes more are charged, %d connections", err, len(told)-n, memory.Used()-used, tab.Len())
		}
		if b := tab.Budget(); b.Refused != before.Refused+1 || b.Used != before.Used || b.Limit != before.Limit || b.Name != "clients" {
			t.Errorf("%+v after %+v", b, before)
		}
	}
	first := add(a)
	refused(a, 100, rdserr.ErrTooMany, "uid 1 has limits.max_clients_per_uid (1)")
	second := add(b)
	refused(c, 100, rdserr.ErrTooMany, "limits.max_clients (2)")
	tab.SetMax(1, 1)
	if tab.Len() != 2 {
		t.Error("somebody had to go")
	}
	refused(c, 100, rdserr.ErrTooMany, "limits.max_clients (1)")
	tab.SetMax(9, 9)
	none := errors.New("no descriptor")
	tab.Room = func(id config.Identity) error {
		if id == c {
			return none
		}
		return nil
	}
	refused(c, 100, none, "no descriptor")
	refused(a, 64<<20, rdserr.ErrNoMemory, "memory")
	third := add(a)
	if memory.Used() != 300 {
		t.Errorf("%d bytes are charged for three connections of 100", memory.Used())
	}
	tab.Remove(a, first, 100)
	tab.Remove(a, third, 100)
	tab.Remove(b, second, 100)
	if memory.Used() != 0 || len(memory.Holders()) != 0 || tab.Len() != 0 || len(tab.byUser) != 0 {
		t.Errorf("%d bytes, %v and %d connections are left", memory.Used(), memory.Holders(), tab.Len())
	}
}
