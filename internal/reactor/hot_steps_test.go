package reactor

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// stepPoller notes what it is told, in a log that it shares with others.
type stepPoller struct {
	name  string
	log   *[]string
	works bool // Poll finds something
	stays bool // Sleep finds something
	then  func()
}

func (p *stepPoller) say(what string) { *p.log = append(*p.log, what+" "+p.name) }

func (p *stepPoller) Poll(time.Duration) bool {
	p.say("poll")
	if p.then != nil {
		p.then()
	}
	return p.works
}

func (p *stepPoller) Sleep() bool { p.say("sleep"); return !p.stays }
func (p *stepPoller) Wake()       { p.say("wake") }

// hotSteps is a list of hot pollers a, b and c, all of them added at 0.
func hotSteps() (l *hotList, p []*stepPoller, said func() string) {
	l = new(hotList)
	l.init()
	log := new([]string)
	for _, name := range []string{"a", "b", "c"} {
		p = append(p, &stepPoller{name: name, log: log})
		l.add(hotPoller{p: p[len(p)-1]})
	}
	return l, p, func() string {
		s := strings.Join(*log, ", ")
		*log = nil
		return s
	}
}

// hotIs checks who is in the list, at its place.
func hotIs(t *testing.T, when string, l *hotList, want ...*stepPoller) {
	t.Helper()
	var got []Poller
	for i, h := range l.list {
		got = append(got, h.p)
		if at, ok := l.place[h.p]; !ok || at != i {
			t.Errorf("%s: %v is looked for at %d, and is at %d", when, h.p, at, i)
		}
	}
	same := len(got) == len(want) && len(l.place) == len(want)
	for i := range min(len(got), len(want)) {
		same = same && got[i] == Poller(want[i])
	}
	if !same {
		t.Errorf("%s: %d pollers, %d places, want %d", when, len(got), len(l.place), len(want))
	}
}

// A poller stays hot until nothing has come for longer than stayHot, by its own clock, when it has
// been looked at often enough, and whatever it does to the list meanwhile everybody is polled once.
func TestHotListPolls(t *testing.T) {
	l, p, said := hotSteps()
	l.looks = leastLooks // since they were added
	if l.poll(stayHot) || said() != "poll a, poll b, poll c" {
		t.Error("nothing came, just as long as it may")
	}
	p[1].works = true
	if !l.poll(stayHot) || said() != "poll a, poll b, poll c" {
		t.Error("one has worked")
	}
	p[1].works, p[2].stays = false, true
	if !l.poll(stayHot+1) || said() != "poll a, sleep a, poll b, poll c, sleep c" {
		t.Error("one sleeps, one has worked before, one finds work as it is to sleep")
	}
	hotIs(t, "one sleeps", l, p[1], p[2])
	p[2].stays = false
	l.looks += leastLooks
	if l.poll(2*stayHot) || said() != "poll b, poll c" {
		t.Error("both had work a moment ago")
	}
	l.poll(2*stayHot + 1)
	said()
	hotIs(t, "the one that had work first sleeps", l, p[2])
	if l.poll(2*stayHot+2) || said() != "poll c, sleep c" {
		t.Error("the last one goes")
	}
	hotIs(t, "all sleep", l)

	l, p, said = hotSteps()
	extra := &stepPoller{name: "d", log: p[0].log}
	p[0].then = func() { l.leave(p[0]); l.leave(p[2]); l.add(hotPoller{p: extra, moment: moment{last: 1}}) }
	if l.poll(1) || said() != "poll a, poll b" {
		t.Error("who was added waits, who has left is not polled")
	}
	hotIs(t, "after that", l, p[1], extra)
	l.leave(p[0]) // who is not there may leave
	hotIs(t, "and that", l, p[1], extra)
}

// However long nothing comes, a poller is looked at leastLooks times before it sleeps, from when it
// was added or had work.
func TestHotListLooks(t *testing.T) {
	l, p, said := hotSteps()
	l.leave(p[2])
	l.looks = 7
	l.add(hotPoller{p: p[2], moment: moment{look: 7}})
	l.leave(p[1])
	sleeps := func() (look int) {
		for look = 1; ; look++ {
			if l.poll(time.Hour); strings.Contains(said(), "sleep c") {
				return look
			}
		}
	}
	if n := sleeps(); n != leastLooks {
		t.Errorf("added at look 7, it slept after %d looks", n)
	}
	l.add(hotPoller{p: p[2], moment: moment{look: l.looks}})
	for range 3 {
		l.poll(time.Hour)
	}
	p[2].works = true
	l.poll(0)
	p[2].works = false
	if n := sleeps(); n != leastLooks {
		t.Errorf("idle since its fourth look, it slept after %d more", n)
	}
	// It goes on after naps of the reactor, each of which counts as some looks, and not after
	// the last of them.
	l.add(hotPoller{p: p[2], moment: moment{look: l.looks}})
	for n := 1; ; n++ {
		l.sleep(time.Hour)
		if l.woken(time.Hour); strings.Contains(said(), "wake c") {
			continue
		}
		if n != leastLooks/sleepLooks {
			t.Errorf("it was not woken after %d naps", n)
		}
		break
	}
}

// All go to sleep together, or none does: who was sent before is told to wake.
func TestHotListSleeps(t *testing.T) {
	l, p, said := hotSteps()
	l.looks = leastLooks // since they were added
	p[2].stays = true
	if l.sleep(7) || said() != "sleep a, sleep b, sleep c, wake a, wake b" {
		t.Error("one has work")
	}
	hotIs(t, "one has work", l, p...)
	if l.list[2].last != 7 || l.list[0].last != 0 {
		t.Errorf("work came at %v, %v", l.list[2].last, l.list[0].last)
	}
	l.leave(p[0])
	if l.sleep(8) || said() != "sleep b, sleep c, wake b" {
		t.Error("one has left")
	}
	hotIs(t, "one has left", l, p[1], p[2])
	p[2].stays = false
	if !l.sleep(9) || said() != "sleep b, sleep c" {
		t.Error("nobody has work")
	}
	hotIs(t, "asleep", l)
	// Who slept for no longer than it may stay hot goes on.
	l.woken(7 + stayHot)
	if got := said(); got != "wake c" {
		t.Errorf("woken: %s", got)
	}
	hotIs(t, "woken", l, p[2])
	if len(l.dozed) != 0 {
		t.Errorf("%d doze still", len(l.dozed))
	}
	l.sleep(10)
	said()
	l.undoze(p[1])
	l.undoze(p[2])
	l.woken(10)
	if got := said(); got != "" {
		t.Errorf("woken after it was forgotten: %s", got)
	}
	if !l.sleep(11) || said() != "" {
		t.Error("an empty list does not sleep")
	}
}

// Hot and Forget, step by step: one that is hot already has its time anew, one that dozes
// is told once, and is nowhere twice.
func TestHotStepByStep(t *testing.T) {
	r := open(t, -1)
	on(r, func() {
		log := new([]string)
		a := &stepPoller{name: "a", log: log}
		r.Hot(a)
		r.hot.list[0].last = -5
		r.Hot(a)
		if fmt.Sprint(*log) != "[wake a]" || r.hot.list[0].last != r.now {
			t.Errorf("hot twice: %v, at %v of %v", *log, r.hot.list[0].last, r.now)
		}
		hotIs(t, "hot twice", &r.hot, a)
		r.hot.sleep(r.now)
		r.Hot(a)
		r.hot.woken(r.now)
		if fmt.Sprint(*log) != "[wake a sleep a wake a]" {
			t.Errorf("hot while it dozed: %v", *log)
		}
		hotIs(t, "hot while it dozed", &r.hot, a)
		r.hot.sleep(r.now)
		r.Forget(a)
		r.hot.woken(r.now)
		hotIs(t, "forgotten while it dozed", &r.hot)
		r.Hot(a)
		r.Forget(a)
		r.Forget(a)
		r.hot.compact()
		hotIs(t, "forgotten twice", &r.hot)
	})
}

// A model of timers: whatever is set, set anew and stopped, what is due fires once, in the
// order of its time, and the time of the first is known.
func TestTimersAgainstAModel(t *testing.T) {
	var other Reactor // whose timers are run by hand
	other.timers.next.Store(int64(never))
	other.thread.Store(self())
	ts := &other.timers
	var fired []int
	timers := make([]*Timer, 40)
	for i := range timers {
		timers[i] = other.NewTimer(func() { fired = append(fired, i) })
	}
	seed := uint32(1)
	next := func(n int) int {
		seed = seed*1664525 + 1013904223
		return int(seed>>8) % n
	}
	set := map[int]bool{}
	for range 20000 {
		switch i := next(len(timers)); next(4) {
		case 0, 1:
			timers[i].Reset(time.Duration(1+next(1000)) * time.Hour)
			set[i] = true
		case 2:
			if timers[i].Stop() != set[i] {
				t.Fatalf("stopping %d: set %v", i, set[i])
			}
			delete(set, i)
		default:
			if next(20) != 0 {
				break
			}
			now := Clock() + time.Duration(next(300))*time.Hour
			var want []int
			for k := range set {
				if timers[k].at <= now {
					want = append(want, k)
				}
			}
			slices.SortFunc(want, func(a, b int) int { return int(timers[a].at - timers[b].at) })
			fired = nil
			if worked := ts.run(now); worked != (len(want) > 0) || !slices.Equal(fired, want) {
				t.Fatalf("fired %v (worked %v), want %v", fired, worked, want)
			}
			for _, k := range want {
				delete(set, k)
			}
		}
		first := never
		for k := range set {
			first = min(first, timers[k].at)
		}
		if got := ts.sleepUntil(); got != first || len(ts.heap) != len(set) {
			t.Fatalf("the first of %d is due at %v, want %v", len(ts.heap), got, first)
		}
	}
	for i := range timers {
		timers[i].Stop()
	}
	for _, kept := range ts.heap[:cap(ts.heap)] {
		if kept != nil {
			t.Fatal("a timer that is not running is kept")
		}
	}
	// Times without end do not wrap, and those before now are now.
	timers[0].Reset(never)
	if timers[0].at != never-1 || ts.sleepUntil() != never-1 {
		t.Errorf("in 292 years: %v", timers[0].at)
	}
	timers[0].Reset(-time.Hour)
	if at := timers[0].at; at <= 0 || at > Clock() {
		t.Errorf("an hour ago: %v, now %v", at, Clock())
	}
	if ts.run(timers[0].at - 1) {
		t.Error("fired a nanosecond early")
	}
	if !ts.run(timers[0].at) || ts.run(never) {
		t.Error("does not fire at its time, once")
	}
}
