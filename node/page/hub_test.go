package page

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/config"
)

// bare is a page without a server and without the goroutine that makes views, so that a
// test takes its steps itself.
func bare(t *testing.T) (*Page, *fake) {
	t.Helper()
	conf, f := config.Default(), &fake{}
	p := New(Deps{
		Admin: f, Volumes: f,
		As:       func(ctx context.Context, _ config.Identity) context.Context { return ctx },
		Allow:    func(uint32) error { return nil },
		Conf:     func() *config.Config { return conf },
		Memory:   quota.New(256<<20, nil),
		Guard:    &guard.Guard{Log: slog.New(slog.DiscardHandler)},
		Log:      slog.New(slog.DiscardHandler),
		Stopping: make(chan struct{}),
	})
	p.hub.running, p.hub.left = true, make(chan struct{}) // as if it ran: the test does
	for i := range p.views {
		p.views[i].forget = time.AfterFunc(time.Hour, func() {}) // a test lets them lapse itself
	}
	t.Cleanup(func() {
		for i := range p.views {
			v := &p.views[i]
			v.mu.Lock()
			v.forget.Stop()
			v.newest.drop()
			v.newest = nil
			v.mu.Unlock()
		}
		if n := p.Memory.Used(); n != 0 {
			t.Errorf("%d bytes are still charged", n)
		}
	})
	return p, f
}

// looks opens a stream of a user and topics.
func looks(t *testing.T, p *Page, uid uint32, names string) *stream {
	t.Helper()
	wants, err := topicList(names)
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.hub.join(config.Identity{UID: uid}, wants)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// woken takes a stream's wake-up, if there is one.
func (s *stream) woken() bool {
	select {
	case <-s.wake:
		return true
	default:
		return false
	}
}

// TestJoin: at the exact bounds a stream more is refused, of one user and of all; a refusal
// is counted and holds nothing, and who leaves makes room.
func TestJoin(t *testing.T) {
	p, _ := bare(t)
	h := &p.hub
	var all []*stream
	for n := range MaxStreams {
		all = append(all, looks(t, p, uint32(n/MaxStreamsPerUser), "status"))
	}
	if used := p.Memory.Used(); used != MaxStreams*streamBytes {
		t.Errorf("%d streams are charged %d bytes, want %d", MaxStreams, used, MaxStreams*streamBytes)
	}
	if _, err := h.join(config.Identity{UID: 7}, nil); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%d streams of events are open", MaxStreams)) {
		t.Errorf("one more than all may have: %v", err)
	}
	h.leave(all[MaxStreams-1]) // of user 1
	if _, err := h.join(config.Identity{UID: 0}, nil); err == nil || !strings.Contains(err.Error(), "uid 0 has") {
		t.Errorf("one more than a user may have: %v", err)
	}
	if h.refused != 2 || p.Memory.Used() != (MaxStreams-1)*streamBytes {
		t.Errorf("%d refused, %d bytes charged", h.refused, p.Memory.Used())
	}
	all[MaxStreams-1] = looks(t, p, 1, "status")
	left := h.left
	for i, s := range all {
		select {
		case <-left:
			t.Fatalf("views are made no more while %d streams are open", len(all)-i)
		default:
		}
		h.leave(s)
	}
	select {
	case <-left:
	default:
		t.Error("views are made when the last has gone")
	}
	if h.running || len(h.streams) != 0 || len(h.byUser) != 0 {
		t.Errorf("running %v, %d streams, of users %v", h.running, len(h.streams), h.byUser)
	}
}

// TestJoinWakes: who comes wakes the goroutine that makes views, also when it has not
// seen the one before yet.
func TestJoinWakes(t *testing.T) {
	p, _ := bare(t)
	for range 2 {
		defer p.hub.leave(looks(t, p, 1, "status"))
	}
	select {
	case <-p.hub.joined:
	default:
		t.Error("nobody says that a stream has come")
	}
}

// TestGive: a newer view takes the place of one that was not sent yet, which is let go; a
// newcomer's is given to newcomers alone, and to nobody who did not ask for the topic.
func TestGive(t *testing.T) {
	p, _ := bare(t)
	h := &p.hub
	status, sockets := topicNumber("status"), topicNumber("sockets")
	one, other := looks(t, p, 1, "status"), looks(t, p, 2, "sockets")
	if w, fresh := h.wanted(status); !w || !fresh {
		t.Errorf("before anything was given: wanted %v, fresh %v", w, fresh)
	}
	if w, _ := h.wanted(topicNumber("peers")); w {
		t.Error("a topic that nobody asked for is wanted")
	}
	snap := func(text string) *snapshot {
		s := &rdsdv1.Status{}
		s.SetState(text)
		x, err := p.encode(s)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	base := p.Memory.Used()
	a, b := snap("a"), snap("b")
	h.give(status, a, false)
	a.drop()
	if !one.woken() || other.woken() {
		t.Error("not the one who asked for it was woken")
	}
	if _, fresh := h.wanted(status); fresh {
		t.Error("who was given a view counts as one who comes")
	}
	h.give(status, b, true)
	if one.woken() {
		t.Error("what newcomers get went to one who had it")
	}
	h.give(status, b, false)
	if a.body != nil {
		t.Error("what was replaced before it was sent is still held")
	}
	if used := p.Memory.Used() - base; used != int64(len(b.body)) {
		t.Errorf("%d bytes are charged for a view of %d", used, len(b.body))
	}
	late := looks(t, p, 3, "sockets,status")
	one.woken()
	h.give(status, b, true)
	if one.woken() || !late.woken() {
		t.Error("what newcomers get did not go to the newcomer alone")
	}
	b.drop()
	for _, s := range []*stream{one, late} {
		next, failed := h.takeNext(s, status)
		if next == nil || !strings.Contains(string(next.body), `"b"`) || failed != "" {
			t.Errorf("taken: %v, %q", next, failed)
		}
		next.drop()
		if next, failed := h.takeNext(s, status); next != nil || failed != "" {
			t.Errorf("taken a second time: %v, %q", next, failed)
		}
	}
	if p.Memory.Used() != base+streamBytes {
		t.Errorf("%d bytes are charged when all was sent, %d before and one stream more", p.Memory.Used(), base)
	}
	// A failure is told to those who asked, and is over when a view is given.
	h.giveError(status, errors.New("why"))
	if !one.woken() || other.woken() {
		t.Error("a failure went to somebody else")
	}
	if next, failed := h.takeNext(one, status); next != nil || failed != "why" {
		t.Errorf("a failure: %v, %q", next, failed)
	}
	if next, failed := h.takeNext(other, sockets); next != nil || failed != "" {
		t.Errorf("of another topic: %v, %q", next, failed)
	}
	h.giveError(status, errors.New("why"))
	c := snap("c")
	h.give(status, c, false)
	c.drop()
	if next, failed := h.takeNext(one, status); next == nil || failed != "" {
		t.Errorf("a view after a failure: %v, %q", next, failed)
	} else {
		next.drop()
	}
	for _, s := range []*stream{one, other, late} { // late has one that was not sent
		h.leave(s)
	}
}

// TestMakeOne: a view that is the same is not sent again, one that differs is; what
// cannot be had is said; the next waits as long as the topic, what it cost and its size
// ask for.
func TestMakeOne(t *testing.T) {
	p, f := bare(t)
	h := &p.hub
	counters, status, volumes := topicNumber("counters"), topicNumber("status"), topicNumber("volumes")
	s := looks(t, p, 1, "counters,status,volumes")
	defer h.leave(s)
	r := round{due: make([]time.Time, len(topics)), last: make([]*snapshot, len(topics))}
	defer func() {
		for _, x := range r.last {
			x.drop()
		}
	}()
	stale := func(i int) { // as if it had been made longer ago than anybody accepts
		v := &p.views[i]
		v.mu.Lock()
		v.newest.made = v.newest.made.Add(-2 * viewAge)
		v.mu.Unlock()
	}
	for n, want := range []bool{true, false, false} { // counters do not change
		begun := time.Now()
		pause := h.makeOne(counters, &r)
		took := time.Since(begun)
		if s.woken() != want {
			t.Errorf("made again after %d times: sent %v, want %v", n, !want, want)
		}
		if every := topics[counters].every; pause > every || pause < every-took {
			t.Errorf("the next counters come in %v, of each %v", pause, topics[counters].every)
		}
		stale(counters)
	}
	// What could be made again is sent, changed or not: the failure before it was.
	others := p.Memory.Account(quota.Peer(netip.MustParseAddr("10.0.0.1")))
	defer others.Close()
	if next, _ := h.takeNext(s, counters); next != nil {
		next.drop()
	}
	others.Grow(quota.Chunks, 256<<20)
	h.makeOne(counters, &r)
	if next, failed := h.takeNext(s, counters); next != nil || !strings.Contains(failed, "memory") {
		t.Errorf("without memory: %v, %q", next, failed)
	}
	others.Give(quota.Chunks, 256<<20)
	h.makeOne(counters, &r)
	if next, failed := h.takeNext(s, counters); next == nil || failed != "" {
		t.Errorf("with memory again: %v, %q", next, failed)
	} else {
		next.drop()
	}
	s.woken()
	for n := range 3 { // the status has a number that rises
		h.makeOne(status, &r)
		if !s.woken() {
			t.Errorf("a view that is another was not sent the %d. time", n)
		}
		stale(status)
	}
	if n := f.asked.Load(); n != 3 {
		t.Errorf("the status was made %d times, want 3", n)
	}
	// A view that is young is what the page has already: not made again.
	h.makeOne(status, &r)
	h.makeOne(status, &r)
	if n := f.asked.Load(); n != 4 {
		t.Errorf("the status was made %d times, want 4", n)
	}
	if pause := h.makeOne(volumes, &r); pause != topics[volumes].every || r.last[volumes] != nil {
		t.Errorf("what cannot be had is tried again in %v", pause)
	}
	if next, failed := h.takeNext(s, volumes); next != nil || failed == "" {
		t.Errorf("what cannot be had: %v, %q", next, failed)
	}
}

// TestMakeOneIsBounded: a view that is large, or costly, comes so much more seldom.
func TestMakeOneIsBounded(t *testing.T) {
	p, _ := bare(t)
	h := &p.hub
	sockets := topicNumber("sockets")
	s := looks(t, p, 1, "sockets")
	defer h.leave(s)
	r := round{due: make([]time.Time, len(topics)), last: make([]*snapshot, len(topics))}
	defer func() {
		for _, x := range r.last {
			x.drop()
		}
	}()
	check := func(what string, want time.Duration, set func(*snapshot)) {
		t.Helper()
		v := &p.views[sockets]
		x, err := v.get(context.Background(), viewAge)
		if err != nil {
			t.Fatal(err)
		}
		defer x.drop()
		set(x)
		x.made = time.Now().Add(time.Hour) // young: makeOne takes it as it is
		begun := time.Now()
		if got := h.makeOne(sockets, &r); got > want || got < want-time.Since(begun) {
			t.Errorf("%s: the next in %v, want %v", what, got, want)
		}
	}
	check("quick and small", topics[sockets].every, func(x *snapshot) { x.cost = time.Microsecond })
	check("a view that takes 200 ms", 200*time.Millisecond*makeShare, func(x *snapshot) { x.cost = 200 * time.Millisecond })
	check("a view of a busy machine", makeMost, func(x *snapshot) { x.cost = 3 * time.Second })
	check("a view of 12 MiB", 3*time.Second, func(x *snapshot) {
		x.cost = time.Microsecond
		more := 12<<20 - len(x.body)
		x.account.Grow(quota.Page, int64(more))
		x.body = append(x.body, make([]byte, more)...)
	})
}

// TestBroken: a panic while views are made ends every stream, once, also when one that is
// ended has not gone yet and there is another panic; who comes then starts anew.
func TestBroken(t *testing.T) {
	p, _ := bare(t)
	h := &p.hub
	first := looks(t, p, 1, "status")
	h.broken(errors.New("once"))
	select {
	case <-first.quit:
	default:
		t.Fatal("a stream goes on that nobody makes views for")
	}
	if h.running {
		t.Error("views are still said to be made")
	}
	h.running, h.left = true, make(chan struct{})
	second := looks(t, p, 1, "status")
	h.broken(errors.New("twice")) // first is still being ended
	select {
	case <-second.quit:
	default:
		t.Error("the second stream goes on")
	}
	h.leave(first)
	h.leave(second)
}

// TestTopicList: what may be asked for.
func TestTopicList(t *testing.T) {
	every := ""
	for i := range topics {
		every += "," + topics[i].name
	}
	for text, want := range map[string]int{
		"": 1, "status": 1, "status,peers": 2, every[1:]: len(topics),
		every[1:] + ",status": -1, "nothing": -1, "status,": -1, ",": -1, "status,nothing": -1,
	} {
		list, err := topicList(text)
		if want < 0 && err == nil || want >= 0 && (err != nil || len(list) != want) {
			t.Errorf("%q: %v, %v", text, list, err)
		}
	}
	if list, _ := topicList(""); len(list) != 1 || topics[list[0]].name != "status" {
		t.Errorf("without names: %v", list)
	}
	if len(topics) > len(stream{}.next) {
		t.Error("a stream has no place for each topic")
	}
}

// TestSendNews: what is new goes out as events of its topics in their order, and nothing
// more is sent, nor held, when the reader does not take it.
func TestSendNews(t *testing.T) {
	p, _ := bare(t)
	h := &p.hub
	s := looks(t, p, 1, "counters,status,volumes")
	defer h.leave(s)
	r := round{due: make([]time.Time, len(topics)), last: make([]*snapshot, len(topics))}
	for i := range topics {
		if w, _ := h.wanted(i); w {
			h.makeOne(i, &r)
		}
	}
	for _, x := range r.last {
		x.drop()
	}
	var sent strings.Builder
	ok := p.sendNews(s, func(parts ...[]byte) bool {
		for _, b := range parts {
			sent.Write(b)
		}
		return true
	})
	list := strings.Split(strings.TrimSuffix(sent.String(), "\n\n"), "\n\n")
	if !ok || len(list) != 3 || !strings.HasPrefix(list[0], "event: counters\ndata: {") || !strings.HasPrefix(list[1], "event: status\ndata: {") ||
		!strings.HasPrefix(list[2], "event: failed\ndata: {") || !strings.Contains(list[2], `"topic":"volumes"`) {
		t.Errorf("%v: %q", ok, list)
	}
	if !p.sendNews(s, func(...[]byte) bool { t.Error("something is sent twice"); return true }) {
		t.Error("nothing to send ends the stream")
	}
	for _, fails := range []string{"counters", "volumes"} {
		if fails == "counters" {
			x, err := p.encode(&rdsdv1.Status{})
			if err != nil {
				t.Fatal(err)
			}
			h.give(topicNumber(fails), x, false)
			x.drop()
		} else {
			h.giveError(topicNumber(fails), errors.New("why"))
		}
		n := 0
		if p.sendNews(s, func(...[]byte) bool { n++; return false }) || n != 1 {
			t.Errorf("%s: a reader that takes nothing is served on", fails)
		}
	}
}
