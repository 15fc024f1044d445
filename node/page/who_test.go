package page

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/node/config"
)

// TestGroupCache: who is a member is remembered for so long and of so many users, and
// found out again after that.
func TestGroupCache(t *testing.T) {
	var g groupCache
	now := time.Unix(1000, 0)
	const who = 54321 // no member of anything
	if g.member(who, "0", now) || len(g.seen) != 1 {
		t.Fatalf("a stranger is a member of root's group, or is not remembered: %v", g.seen)
	}
	g.seen[who] = membership{true, now}
	if !g.member(who, "0", now.Add(groupsAge-1)) {
		t.Error("what was found out is asked again too soon")
	}
	if g.member(who, "0", now.Add(groupsAge)) {
		t.Error("what was found out is believed for too long")
	}
	if at := g.seen[who].at; !at.Equal(now.Add(groupsAge)) {
		t.Errorf("found out at %v", at)
	}
	for uid := range uint32(groupsKept - 1) {
		g.seen[uid] = membership{false, now}
	}
	g.member(who+1, "0", now.Add(groupsAge))
	if n := len(g.seen); n != 1 {
		t.Errorf("%d users are remembered, with one more than %d", n, groupsKept)
	}
	if _, ok := g.seen[who+1]; !ok {
		t.Error("the one asked about last is forgotten")
	}
}

// TestMember: of a group that is not known nobody is a member, without one the daemon's
// own counts, and of a user who is not known nothing is.
func TestMember(t *testing.T) {
	for _, c := range []struct {
		uid   uint32
		group string
		want  bool
	}{
		{0, "0", true},
		{0, "no such group", false},
		{0, "", os.Getegid() == 0},
		{54321, "", false},
		{65534, "0", false},
	} {
		if new(groupCache).find(c.uid, c.group, time.Unix(1000, 0)) != c.want {
			t.Errorf("uid %d in group %q: %v", c.uid, c.group, !c.want)
		}
	}
}

// TestMayLookByGroup: the bits of the socket's mode say whether its group, or everybody,
// may look; the group's bit is nothing to others.
func TestMayLookByGroup(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	for _, c := range []struct {
		perm   os.FileMode
		member bool
		want   bool
	}{
		{0o600, true, false}, {0o600, false, false},
		{0o620, true, true}, {0o620, false, false},
		{0o640, true, false}, // may read the socket, which is not to connect
		{0o602, false, true}, {0o604, false, false},
		{0o660, true, true}, {0o660, false, false},
		{0o622, false, true},
	} {
		conf := config.Default()
		conf.API.SocketMode.Perm, conf.API.SocketGroup = c.perm, "0"
		p := &Page{Deps: Deps{Conf: func() *config.Config { return conf }}}
		p.groups.seen = map[uint32]membership{54321: {c.member, time.Now().Add(time.Hour)}}
		err := p.mayLook(config.Identity{UID: 54321, GID: config.NobodyID}, a)
		if (err == nil) != c.want {
			t.Errorf("mode %o, member %v: %v", c.perm, c.member, err)
		}
		if p.mayLook(config.Identity{UID: 54321, ForeignUser: true}, a) == nil && c.perm&0o002 == 0 {
			t.Errorf("mode %o: a user who is in the group lets in those who cannot be told from it", c.perm)
		}
		if err != nil && !strings.Contains(err.Error(), "uid 54321") {
			t.Errorf("the refusal does not say of whom: %v", err)
		}
	}
}

// TestUnknownCaller: a request of which nobody knows the connection is nobody's, from
// afar, and is refused before anything is asked of the API.
func TestUnknownCaller(t *testing.T) {
	p, f := bare(t)
	r := httptest.NewRequest(http.MethodGet, Prefix+"status", nil)
	r.Host = "localhost"
	if id := callerOf(r); id != nobody {
		t.Errorf("it is from %+v", id)
	}
	if id, err := p.caller(r); err == nil || id != nobody {
		t.Errorf("%+v, %v", id, err)
	}
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	if w.Code != http.StatusForbidden || f.asked.Load() != 0 {
		t.Errorf("%d %s, the API was asked %d times", w.Code, w.Body, f.asked.Load())
	}
	// Nor is a connection whose other end cannot be told somebody's: closed, it is refused.
	l, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	w = httptest.NewRecorder()
	p.ServeHTTP(w, r.WithContext(p.ConnContext(context.Background(), c)))
	if w.Code != http.StatusForbidden || f.asked.Load() != 0 {
		t.Errorf("%d %s, the API was asked %d times", w.Code, w.Body, f.asked.Load())
	}
}

// TestAllowCountsTheCaller: each request for JSON is counted as its user's, and files of
// the page are not.
func TestAllowCountsTheCaller(t *testing.T) {
	s := serve(t, "tcp")
	var uids []uint32
	s.Allow = func(uid uint32) error { uids = append(uids, uid); return nil }
	for _, target := range []string{"/", "/assets/app.js", "/api/v1/status", "/api/v1/page"} {
		if a, body := s.ask(t, "GET", target); a.StatusCode != 200 {
			t.Errorf("%s: %d %s", target, a.StatusCode, body)
		}
	}
	if len(uids) != 2 || uids[0] != uint32(os.Getuid()) || uids[1] != uids[0] {
		t.Errorf("counted for the users %v", uids)
	}
}

// TestAddrPort: an IPv4 address within IPv6 is the IPv4 address; what is no TCP is none.
func TestAddrPort(t *testing.T) {
	for _, c := range []struct {
		a    net.Addr
		want string
		ok   bool
	}{
		{&net.TCPAddr{IP: net.ParseIP("::ffff:10.0.0.1"), Port: 7}, "10.0.0.1:7", true},
		{&net.TCPAddr{IP: net.ParseIP("fe80::1"), Port: 7}, "[fe80::1]:7", true},
		{&net.UnixAddr{Name: "s", Net: "unix"}, "invalid AddrPort", false},
	} {
		if ap, ok := addrPort(c.a); ok != c.ok || ap.String() != c.want {
			t.Errorf("%v: %v, %v", c.a, ap, ok)
		}
	}
}
