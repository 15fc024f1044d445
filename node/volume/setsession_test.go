package volume

import (
	"errors"
	"reflect"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/kernelpeer"
	"github.com/rdsd/rdsd/rtrs"
)

// TestSetSession: what is changed of a session counts at once and for its mappings, which keep it
// over a restart; what is left out stays, and what is wrong changes nothing.
func TestSetSession(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	mustExport(t, server.h, memory("disk", 1<<20))
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", Persist: true, Unfenced: UnfencedWait})
	if m.Unfenced != UnfencedWait || m.UnfencedAfter != 40*time.Second || m.MaxReconnects != NoLimit {
		t.Fatalf("mapped as %+v", m.MapSpec)
	}
	for _, c := range []SessionChange{{}, {Unfenced: "soon"}, {UnfencedAfter: -1}, {UnfencedAfter: 25 * time.Hour}, {MaxReconnects: -2}, {MaxReconnects: 10000}, {Policy: "best"}} {
		if _, err := client.h.SetSession(testCtx(t), m.Session, c); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if _, err := client.h.SetSession(testCtx(t), "nobody", SessionChange{MaxReconnects: 1}); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("of nobody: %v", err)
	}
	if err := client.h.SetPolicy(testCtx(t), m.Session, ""); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("no policy: %v", err)
	}
	s, err := client.h.SetSession(testCtx(t), m.Session, SessionChange{Policy: "rr", Unfenced: UnfencedAfter, UnfencedAfter: time.Minute})
	if err != nil || s.Policy != "round-robin" || s.Unfenced != UnfencedAfter || s.UnfencedAfter != time.Minute || s.MaxReconnects != NoLimit {
		t.Fatalf("%+v, %v", s, err)
	}
	if _, err := client.h.SetSession(testCtx(t), s.ID, SessionChange{MaxReconnects: 7}); err != nil {
		t.Fatal(err)
	}
	client.stop()
	client.start()
	eventually(t, "it is mapped again", func() bool {
		l := client.h.Mappings()
		return len(l) == 1 && l[0].State == StateOpen
	})
	is := client.h.Mappings()[0]
	if is.Policy != "round-robin" || is.Unfenced != UnfencedAfter || is.UnfencedAfter != time.Minute || is.MaxReconnects != 7 {
		t.Fatalf("after a restart %+v", is.MapSpec)
	}
	// Another mapping of the session takes part in it as it is.
	mustExport(t, server.h, memory("more", 1<<20))
	_, err = client.h.Map(testCtx(t), MapSpec{Node: server.node(), Name: "more", Unfenced: UnfencedNow})
	if !errors.Is(err, syscall.EINVAL) {
		t.Errorf("another mapping, with other settings: %v", err)
	}
	mustMap(t, client.h, MapSpec{Node: server.node(), Name: "more", Unfenced: UnfencedAfter, MaxReconnects: 7})
}

// TestUnfencedFailovers: requests of a kernel's lost path go to the other one, at once or after the
// time that is set, and it is counted.
func TestUnfencedFailovers(t *testing.T) {
	for _, unfenced := range []string{UnfencedNow, UnfencedAfter} {
		t.Run(unfenced, func(t *testing.T) {
			port := freePort(t)
			server, client := newServerNode(t, port), newClientNode(t, port)
			server.quiet, client.quiet = true, true
			client.links = kernelpeer.Volumes
			// A lost path is away for longer than its requests wait.
			client.cfg.ReconnectMin, client.cfg.ReconnectMax = time.Minute, time.Minute
			server.start()
			client.start()
			mustExport(t, server.h, memory("disk", 4<<20))
			m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", Paths: server.twoPaths(), Policy: "rr", Unfenced: unfenced, UnfencedAfter: time.Second})
			eventually(t, "both paths", func() bool { return client.h.Sessions()[0].PathsUp == 2 })
			x := startTraffic(t, open(t, m))
			var begun time.Time
			session := func() SessionInfo { return client.h.Sessions()[0] }
			for caught := false; !caught; { // a request that is in flight there
				begun = time.Now()
				if err := client.h.DisconnectPath(testCtx(t), m.Session, PathSpec{Dst: "127.0.0.3"}); err != nil {
					t.Fatal(err)
				}
				eventually(t, "the path's end", func() bool { return session().PathsUp == 1 && client.h.Paths()[1].State == "disconnected" })
				if caught = session().Waiting > 0 || session().UnfencedFailovers > 0; caught {
					break
				}
				if err := client.h.ReconnectPath(testCtx(t), m.Session, PathSpec{Dst: "127.0.0.3"}); err != nil {
					t.Fatal(err)
				}
				eventually(t, "both paths", func() bool { return session().PathsUp == 2 })
			}
			eventually(t, "a failover without a fence", func() bool { return session().UnfencedFailovers == 1 })
			if took := time.Since(begun); unfenced == UnfencedAfter && took < time.Second {
				t.Errorf("it was after %v", took)
			}
			x.end(t)
		})
	}
}

// TestSessionChanges holds the edges of what may be changed, and the words for what becomes of
// requests without a fence.
func TestSessionChanges(t *testing.T) {
	for c, right := range map[SessionChange]bool{
		{UnfencedAfter: minUnfenced}: true, {UnfencedAfter: minUnfenced - 1}: false,
		{UnfencedAfter: maxTimeout}: true, {UnfencedAfter: maxTimeout + 1}: false,
		{MaxReconnects: NoLimit}: true, {MaxReconnects: 1}: true, {MaxReconnects: maxReconnects}: true, {MaxReconnects: maxReconnects + 1}: false,
	} {
		if err := c.check(); (err == nil) != right {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for word, want := range map[string]rtrs.Unfenced{UnfencedAfter: rtrs.RetryAfter, UnfencedNow: rtrs.RetryNow, UnfencedWait: rtrs.RetryNever} {
		if got := unfenced(word); got != want {
			t.Errorf("%s is %v, want %v", word, got, want)
		}
	}
}

// TestSessionIsBackAsItWas: what was asked for with one mapping is the session's, and another one that joined it
// keeps it over a restart, also where it is the only one that comes back.
func TestSessionIsBackAsItWas(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	for _, name := range []string{"disk", "second", "third"} {
		mustExport(t, server.h, file(t, name, 8<<20))
	}
	paths := server.twoPaths()
	node := "store" // has no address: what is not the session's cannot be made
	mustMap(t, client.h, MapSpec{Node: node, Name: "disk", Paths: paths[:1], Policy: "rr", QueueDepth: 8, OnLoss: OnLossError,
		IOTimeout: 7 * time.Second, LossTimeout: 8 * time.Second, Unfenced: UnfencedWait, UnfencedAfter: time.Minute, MaxReconnects: 9})
	m := mustMap(t, client.h, MapSpec{Node: node, Name: "second", Persist: true})
	third := mustMap(t, client.h, MapSpec{Node: node, Name: "third", Paths: paths[1:]}) // its path is the session's from then on
	if err := client.h.Unmap(testCtx(t), third.ID, true); err != nil {
		t.Fatal(err)
	}
	was, err := client.h.Mapping(m.ID)
	if err != nil || was.Unfenced != UnfencedWait || was.OnLoss != OnLossError || len(was.Paths) != 2 {
		t.Fatalf("%+v, %v", was.MapSpec, err)
	}
	client.stop()
	client.start()
	opensAgain(t, was)
	if is, err := client.h.Mapping(m.ID); err != nil || !reflect.DeepEqual(is.MapSpec, was.MapSpec) {
		t.Errorf("it is back as\n%+v, %v, it was\n%+v", is.MapSpec, err, was.MapSpec)
	}
}

// TestSetSessionOfMappingsThatAreAway: a change is written down of the session's mappings that could not be taken up, too. One of them
// may be the one that makes the session at the next start.
func TestSetSessionOfMappingsThatAreAway(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	for _, name := range []string{"a", "b"} {
		mustExport(t, server.h, file(t, name, 1<<20))
		mustMap(t, client.h, MapSpec{Node: server.node(), Name: name, Session: "app", Persist: true})
	}
	client.stop()
	client.cfg.MaxMappings = 1
	client.start()
	back(t, client, "v1")
	change := SessionChange{Policy: "round-robin", Unfenced: UnfencedWait, UnfencedAfter: time.Minute, MaxReconnects: 7}
	if _, err := client.h.SetSession(testCtx(t), "app", change); err != nil {
		t.Fatal(err)
	}
	for _, m := range written(t, client).Mappings {
		if m.Policy != change.Policy || m.Unfenced != change.Unfenced || m.UnfencedAfter != change.UnfencedAfter.String() || m.MaxReconnects != change.MaxReconnects {
			t.Errorf("written is %+v", m)
		}
	}
	if err := client.h.Unmap(testCtx(t), "v1", true); err != nil {
		t.Fatal(err)
	}
	_, err := client.h.Map(testCtx(t), MapSpec{Node: "127.0.0.6", Name: "a", Session: "app"})
	is(t, "with another node than one that is left", err, syscall.EINVAL, "v2")
}

// TestPathsOfMappingsThatAreAway: a path that is removed from a session, or added, is so for its mappings too that could not be taken up:
// at the next start one of them would bring the former back, and not know the latter.
func TestPathsOfMappingsThatAreAway(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	paths := server.twoPaths()
	for _, name := range []string{"a", "b"} {
		mustExport(t, server.h, file(t, name, 1<<20))
		mustMap(t, client.h, MapSpec{Node: server.node(), Name: name, Session: "app", Persist: true, Paths: paths})
	}
	client.stop()
	client.cfg.MaxMappings = 1
	client.start()
	back(t, client, "v1")
	added := PathSpec{Src: "127.0.0.5", Dst: paths[0].Dst}
	if _, err := client.h.AddPath(testCtx(t), "app", added); err != nil {
		t.Fatal(err)
	}
	if err := client.h.RemovePath(testCtx(t), "app", paths[1]); err != nil {
		t.Fatal(err)
	}
	is := func(what string, list []PathSpec) {
		t.Helper()
		if want := []PathSpec{paths[0], added}; !slices.Equal(list, want) {
			t.Errorf("%s: %+v, want %+v", what, list, want)
		}
	}
	for _, m := range written(t, client).Mappings {
		is("written of "+m.ID, m.Paths)
	}
	if err := client.h.Unmap(testCtx(t), "v1", true); err != nil {
		t.Fatal(err)
	}
	client.stop()
	client.start()
	back(t, client, "v2")
	m, err := client.h.Mapping("v2")
	if err != nil {
		t.Fatal(err)
	}
	is("at the next start", m.Paths)
}
