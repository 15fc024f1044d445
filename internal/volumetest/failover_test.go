package volumetest

import (
	"math/rand/v2"
	"testing"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// What is promised while a path is left.
const (
	worstStall     = 2 * time.Second
	worstDetection = time.Second
	// One connection of a path is asked at the next heartbeat, and judged at one:
	// rtrs.ClientConfig.ConnTimeout, and two intervals.
	worstHalf = 800*time.Millisecond + 400*time.Millisecond
)

// TestFailovers: paths are cut, silent, flapping, slow and lossy, and in the end
// all lost for five seconds, under fio with checksums and an app that knows every
// block. Every byte is right, no operation waits longer than promised, and every
// silence is noticed in time (B2 to B4).
func TestFailovers(t *testing.T) { testFailovers(t, overTCP) }

// TestFailoversOverRDMA: the same with paths over RoCE, and with paths of both kinds, among
// which requests fail over.
func TestFailoversOverRDMA(t *testing.T) {
	for _, o := range []over{overRDMA, overBoth} {
		t.Run(o.String(), func(t *testing.T) {
			t.Parallel()
			testFailovers(t, o)
		})
	}
}

func testFailovers(t *testing.T, o over) {
	w := newWorld(t, o)
	w.serve(false, "")
	w.map_("")
	w.addPaths(3)
	w.export("fio", 32<<20)
	w.export("app", appBytes)
	events := w.client.watch(t)
	mf := w.mount(rdsd.MapSpec{Name: "fio", Session: "s", Policy: rdsd.PolicyRoundRobin})
	ma := w.mount(rdsd.MapSpec{Name: "app", Session: "s"})
	defer func() {
		if t.Failed() {
			t.Logf("the last events:\n%s", events)
		}
	}()

	cutting, others := *traffic, 14*time.Second // what the other parts take at least
	if o.hasRDMA() {
		cutting /= time.Duration(*rdmaShare)
		others = time.Duration(o.some(7)) * 2 * time.Second
	}
	if testing.Short() {
		cutting, others = time.Second, 2*time.Second
	}
	fio := startFio(t, mf.URI, cutting+others)
	a := newApp(t, ma.URI)
	a.rate = time.Millisecond
	a.start()
	a.progress(100, 5*time.Second)
	a.stall()

	f := &failovers{t: t, w: w, m: ma, a: a, events: events}
	f.cuts(cutting)
	t.Logf("after the cuts: %d failovers, the longest operation took %v", events.count(isFailover), ms(f.worst))
	f.silences(o.some(6))
	f.flaps(o.some(3))
	f.slow(2 * time.Second)
	stall := f.worst
	r := fio.wait()
	want := int(10 * min(cutting, 20*time.Second).Seconds())
	if o.hasRDMA() {
		want /= 2 // two worlds at once, and RoCE's packets pass three programs by hand
	}
	if n := events.count(isFailover); n < want && !testing.Short() {
		t.Errorf("%d failovers, want %d", n, want)
	}
	if stall > worstStall || r.longest > worstStall {
		t.Errorf("an operation took %v, one of fio's %v; %v are allowed", stall, r.longest, worstStall)
	}
	for _, d := range f.noticed {
		if d > worstDetection {
			t.Errorf("a silent path was noticed after %v; %v are allowed", d, worstDetection)
		}
	}
	n := events.count(isFailover)

	f.half(o.some(3))
	again := time.Duration(0)
	if !testing.Short() {
		again = f.allLost(mf.URI)
	}
	a.stop()
	a.verify()
	if t.Failed() {
		return
	}
	a.d.inFile(t, w.file("app"))
	if events.gaps > 0 {
		t.Errorf("the watch has missed events")
	}
	first, last := spread(f.noticed)
	_, half := spread(f.halves)
	t.Logf("REPORT over %v: %d failovers with %d requests; worst stall %v (fio's %v); silence noticed after %v to %v (%d times); %d operations and %d of fio's, all bytes right; one silent connection of a path: %v; without any path for 5 s, then on after %v",
		o, n, events.requests(), ms(stall), ms(r.longest), ms(first), ms(last), len(f.noticed), a.ops.Load(), r.reads+r.writes, ms(half), ms(again))
}

func ms(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

func spread(l []time.Duration) (least, most time.Duration) {
	for i, d := range l {
		if i == 0 || d < least {
			least = d
		}
		most = max(most, d)
	}
	return least, most
}

// failovers does harm to the paths of a world.
type failovers struct {
	t       *testing.T
	w       *world
	m       *rdsd.Mapping
	a       *app
	events  *watch
	worst   time.Duration
	noticed []time.Duration
	halves  []time.Duration // longest operations while one connection of a path was silent
}

// note takes the longest operation of a part.
func (f *failovers) note(what string) {
	f.t.Helper()
	d := f.a.stall()
	f.worst = max(f.worst, d)
	if d > worstStall {
		f.t.Errorf("%s: an operation took %v", what, ms(d))
	}
	if f.a.bad() {
		f.a.stop()
		f.t.FailNow()
	}
}

// cuts resets one path after another, while another is connected.
func (f *failovers) cuts(total time.Duration) {
	rng := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	for end := time.Now().Add(total); time.Now().Before(end); {
		p := f.w.paths[rng.IntN(len(f.w.paths))]
		m, err := f.w.client.vols().Mapping(f.w.ctx(), f.m.ID)
		if err != nil {
			f.t.Fatal(err)
		}
		if m.PathsUp >= 2 {
			p.cut()
		}
		time.Sleep(time.Duration(20+rng.IntN(50)) * time.Millisecond)
	}
	f.note("cuts")
}

// silences lets a path go silent, in one direction or in both.
func (f *failovers) silences(n int) {
	f.w.pathsUp(f.m, len(f.w.paths))
	for i := range n {
		p := f.w.paths[i%len(f.w.paths)]
		since, lost := time.Now(), f.a.clock.Lost()
		held, open := way{hold: true}, way{}
		switch i % 3 {
		case 0:
			p.set(held)
		case 1:
			p.setEach(held, open)
		case 2:
			p.setEach(open, held)
		}
		var at time.Time
		eventually(f.t, "the silence is noticed", func() (ok bool) {
			at, ok = f.events.state(p, false, since)
			return ok
		})
		f.noticed = append(f.noticed, at.Sub(since)-(f.a.clock.Lost()-lost)) // without what the machine took
		f.a.progress(50, worstStall)
		p.set(open)
		f.w.pathsUp(f.m, len(f.w.paths))
		f.note("silence")
	}
}

// half silences one of the connections of a path; the others go on.
func (f *failovers) half(n int) {
	for i := range n {
		p := f.w.paths[i%len(f.w.paths)]
		since, lost := time.Now(), f.a.clock.Lost()
		p.holdLast()
		var at time.Time
		eventually(f.t, "the silence of one connection is noticed", func() (ok bool) {
			at, ok = f.events.state(p, false, since)
			return ok
		})
		if d := at.Sub(since) - (f.a.clock.Lost() - lost); d > worstHalf {
			f.t.Errorf("a connection's silence was noticed after %v; %v are allowed", ms(d), worstHalf)
		}
		f.a.progress(50, worstStall)
		p.release()
		f.w.pathsUp(f.m, len(f.w.paths))
		if d := f.a.stall(); d > worstHalf+worstStall-worstDetection {
			f.t.Errorf("one silent connection: an operation took %v", ms(d))
		} else {
			f.halves = append(f.halves, d)
		}
	}
}

// flaps lets two paths come and go every second, in turn.
func (f *failovers) flaps(n int) {
	for range n {
		for _, p := range f.w.paths[:2] {
			p.close()
			time.Sleep(time.Second) // the fault
			p.open()
			f.note("flaps")
		}
	}
}

// slow delays one path, lets another lose packets and cuts a third now and then.
func (f *failovers) slow(total time.Duration) {
	f.w.pathsUp(f.m, len(f.w.paths))
	f.w.paths[0].set(way{delay: 20 * time.Millisecond})
	f.w.paths[1].set(way{loss: 0.02})
	for end := time.Now().Add(total); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		f.w.paths[2].cut()
	}
	f.a.progress(100, 2*worstStall)
	for _, p := range f.w.paths {
		p.set(way{})
	}
	f.w.pathsUp(f.m, len(f.w.paths))
	f.note("slow")
}

// allLost takes every path away for five seconds; everything waits, and goes on.
func (f *failovers) allLost(uri string) time.Duration {
	fio := startFio(f.t, uri, 7*time.Second)
	f.a.progress(100, 5*time.Second)
	for _, p := range f.w.paths {
		p.close()
	}
	time.Sleep(5 * time.Second) // the fault
	if m, err := f.w.client.vols().Mapping(f.w.ctx(), f.m.ID); err != nil || m.PathsUp != 0 || m.Waiting == 0 {
		f.t.Errorf("without a path: %+v, %v", m, err)
	}
	began := f.a.ops.Load()
	for _, p := range f.w.paths {
		p.open()
	}
	back := f.a.clock.Now()
	for f.a.ops.Load() == began && f.a.clock.Now()-back < 10*time.Second {
		time.Sleep(time.Millisecond)
	}
	again := f.a.clock.Now() - back
	if again > 6*time.Second { // volumes.reconnect_max is 5 s
		f.t.Errorf("the paths are back, and nothing goes on for %v", again)
	}
	f.a.progress(100, 5*time.Second)
	fio.wait()
	return again
}
