package adversary

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// What the adversary may do to others, as docs/testing.md says.
const (
	p50Factor  = 2
	p99Factor  = 5
	stallLimit = 100 * time.Millisecond
	restored   = 10 * time.Second // what the adversary held is given back within this,
	forgotten  = 3 * time.Minute  // but for paths over RoCE: 30 s of silence and 69 s of asking, or 147 s where the peer has asked for more time to confirm (roce/cm, RepMRA)
	soak       = 10 * time.Minute // a run so long waits until the last of these has ended
	enough     = 500              // round trips of a phase that have a p99
	calm       = 0.25             // processors that others may use where latencies can be judged; with half of one p50 of all victims doubled
)

// TestAdversary runs hostile clients and peers of another user beside victims,
// in phases with and without.
func TestAdversary(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("elsewhere: the adversary and the victims need users of their own, which takes root")
	}
	total := *runTime
	if testing.Short() {
		total = min(total, 15*time.Second)
	}
	seed := *runSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	acts, err := Choose(list(*runActs), list(*runWithout))
	must(t, err)
	t.Logf("seed %d; again with -adversary.seed=%d, fewer acts with -adversary.acts or -adversary.without", seed, seed)
	r := &run{t: t, rng: rand.New(rand.NewPCG(seed, 0)), acts: acts}
	t.Cleanup(r.lastWords)
	r.world = newWorld(t)
	r.all(total)
}

// run is one run.
type run struct {
	*world
	t       *testing.T
	rng     *rand.Rand
	acts    []Act
	victims *role
	canary  *role
	empty   [2]residue // before anybody came
	quiet   []phase
	hostile []phase
	before  phase // the controls of the phase before

	unjudged int   // stalls while the machine stood too
	begun    int64 // on the shared clock

	mu     sync.Mutex
	story  []played       // guarded by mu; since the last quiet phase
	counts map[string]int // guarded by mu; acts by name
	failed []string       // guarded by mu; what failed, and what was under way
}

// played is an act that a worker has begun.
type played struct {
	at     int64 // on the shared clock
	daemon string
	act    string
	seed   uint64        // of its worker
	life   time.Duration // of its worker until then
}

// phase is what was measured in one.
type phase struct {
	victimsReport
	canaryReport
	others float64 // processors that others used
}

// begin starts those who measure, and returns when they have begun.
func (r *run) begin() {
	t := r.t
	r.counts, r.begun = map[string]int{}, monotonic()
	a, b := r.daemons[0], r.daemons[1]
	victims := victimsOrder{SocketA: a.socket, SocketB: b.socket, A: a.addr, B: b.addr, Pages: [2]string{a.http, b.http}, URI: r.uri}
	r.rehearse(victims)
	var err error
	r.victims, err = r.role("victims", victimUID, victims)
	must(t, err)
	t.Cleanup(r.victims.end)
	r.canary, err = r.role("canary", 0, canaryOrder{Daemons: []int{a.pid(), b.pid()}, Victims: []int{r.victims.cmd.Process.Pid}, Greet: r.targets[0]})
	must(t, err)
	t.Cleanup(r.canary.end)
	time.Sleep(time.Second)
	var warm phase
	must(t, r.victims.ask("phase", &warm.victimsReport))
	must(t, r.canary.ask("phase", &warm.canaryReport))
	warm.Stalls = nil // sockets were bound and a volume opened
	r.judge("warm-up", warm)
	for i := range r.targets {
		for _, p := range warm.Ports {
			if p.Addr() == r.targets[i].Daemon {
				r.targets[i].Victims = append(r.targets[i].Victims, p)
			}
		}
	}
}

func (r *run) all(total time.Duration) {
	t := r.t
	r.begin()
	stop := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() { r.watchMemory(stop) })
	defer watch.Wait()
	defer close(stop)
	// A third of the time is quiet, in 2 to 6 turns.
	turns := min(max(int(total/(20*time.Second)), 2), 6)
	turn := total / time.Duration(turns)
	for n := 0; n < turns && !t.Failed(); n++ {
		before := r.usage()
		time.Sleep(turn / 3)
		r.quiet = append(r.quiet, r.measured("quiet", before))
		if n == 0 {
			r.profile(turn / 3)
		}
		before = r.usage()
		r.attack(turn * 2 / 3)
		r.hostile = append(r.hostile, r.measured("hostile", before))
		r.settled(n)
	}
	if !t.Failed() {
		r.compare()
	}
	var last victimsReport
	if err := r.victims.ask("end", &last); err != nil {
		r.failf(nil, "the victims: %v", err)
	}
	r.judge("the end", phase{victimsReport: last})
	r.victims.end()
	if !r.dead() {
		r.leftNothing()
	}
	r.report(last)
	if t.Failed() {
		t.Logf("acts since the last quiet phase:\n%s", text(r.story[max(0, len(r.story)-200):], r.begun))
	}
}

// ofCanary finds addresses of good.
var ofCanary = regexp.MustCompile(`\b127\.70\.\d+\.\d+\b`)

// failf fails the test, which goes on. What failed is said again at the end of the
// log, with the acts that were under way; nil: those that were begun last.
func (r *run) failf(acts []played, format string, args ...any) {
	r.t.Helper()
	said := fmt.Sprintf(format, args...)
	r.t.Error(said)
	if acts == nil {
		acts = r.during(monotonic(), monotonic())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	first, _, _ := strings.Cut(said, "\n")
	r.failed = append(r.failed, first[:min(len(first), 700)])
	r.unlucky = append(r.unlucky, ofCanary.FindAllString(first, -1)...)
	if len(r.failed) == 1 {
		r.failed = append(r.failed, "under way:\n"+text(acts[max(0, len(acts)-12):], r.begun))
	}
}

// lastWords ends the log of a run that failed with what is needed to judge it: of a
// long log not more than the end may be shown.
func (r *run) lastWords() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.failed) > 0 {
		r.t.Logf("IN SHORT %s", strings.Join(r.failed[:min(len(r.failed), 8)], "\n"))
	}
}

// actTime is how long an act and what it leaves behind may take.
const actTime = 2 * time.Second

// during is what may have been under way in [from, to].
func (r *run) during(from, to int64) (list []played) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.story {
		if p.at >= from-int64(actTime) && p.at <= to {
			list = append(list, p)
		}
	}
	return list
}

func (r *run) since(at int64) string {
	return fmt.Sprintf("%.3f s", time.Duration(at-r.begun).Seconds())
}

func text(list []played, begun int64) string {
	var b strings.Builder
	for _, p := range list {
		fmt.Fprintf(&b, "%9.3f s daemon %s seed %d after %.3f s: %s\n", time.Duration(p.at-begun).Seconds(), p.daemon, p.seed, p.life.Seconds(), p.act)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// rehearse lets victims come and go, so that the links that their traffic
// opens between the daemons are there, and takes down what the daemons then keep.
func (r *run) rehearse(o victimsOrder) {
	v, err := r.role("victims", victimUID, o)
	must(r.t, err)
	time.Sleep(2 * time.Second)
	var p victimsReport
	must(r.t, v.ask("end", &p))
	r.judge("rehearsal", phase{victimsReport: p})
	v.end()
	for i, d := range r.daemons {
		for end := time.Now().Add(restored); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if r.empty[i], err = d.residue(); err == nil && r.empty[i].Sockets == 0 && r.empty[i].Regions == 0 {
				break
			}
		}
		must(r.t, err)
	}
}

// measured takes what the victims and the canary have measured since before.
func (r *run) measured(what string, before usage) (p phase) {
	r.t.Helper()
	p.others = r.usage().others(before)
	if err := r.victims.ask("phase", &p.victimsReport); err != nil {
		r.failf(nil, "%s: %v", what, err)
		r.t.FailNow()
	}
	if err := r.canary.ask("phase", &p.canaryReport); err != nil {
		r.failf(nil, "%s: %v", what, err)
		r.t.FailNow()
	}
	// A stall at the border of two phases: what was late before counts too.
	was := p
	p.Late, p.Waits, p.Own = slices.Concat(r.before.Late, p.Late), slices.Concat(r.before.Waits, p.Waits), slices.Concat(r.before.Own, p.Own)
	r.before = was
	p.Rows["greeting"], p.Rows["session"], p.Rows["health"] = p.Greet, p.Session, p.Health
	r.judge(what, p)
	return p
}

// judge holds a phase against what must be in all of them.
func (r *run) judge(what string, p phase) {
	r.t.Helper()
	for _, e := range p.Errors {
		r.failf(nil, "%s: %s", what, e)
	}
	for _, e := range p.Wrong {
		r.failf(nil, "%s: %s", what, e)
	}
	r.stalls(what, &p)
	r.dead()
}

// profile has what the daemons are at written to files, if a place is given.
func (r *run) profile(length time.Duration) {
	for _, d := range r.daemons {
		if *runProfile == "" {
			return
		}
		go func() { // ends with the profile
			b, err := d.page(fmt.Sprintf("/debug/pprof/profile?seconds=%d", max(1, int(length.Seconds()))), time.Minute)
			if err == nil {
				err = os.WriteFile(filepath.Join(*runProfile, "cpu-"+d.name), b, 0o644)
			}
			if err != nil {
				r.t.Logf("no profile of daemon %s: %v", d.name, err)
			}
		}()
	}
}

// usage is what was used of the processors, by all and by this run.
func (r *run) usage() usage {
	return usageOf(os.Getpid(), r.victims.cmd.Process.Pid, r.canary.cmd.Process.Pid, r.daemons[0].pid(), r.daemons[1].pid())
}

// dead reports, and fails the test, when a daemon has ended.
func (r *run) dead() bool {
	r.t.Helper()
	for _, d := range r.daemons {
		if d.gone() {
			r.failf(nil, "daemon %s has ended: %v", d.name, d.cmd.ProcessState)
			return true
		}
	}
	return false
}

// attack plays against both daemons until the time is over. Workers live for a
// moment; half of them are killed in whatever they are at.
func (r *run) attack(length time.Duration) {
	end := time.Now().Add(length)
	r.mu.Lock()
	r.story = nil
	r.mu.Unlock()
	var wg sync.WaitGroup
	for i := range r.targets {
		rng := rand.New(rand.NewPCG(r.rng.Uint64(), uint64(i)))
		wg.Go(func() {
			for life := 0; time.Now().Before(end) && !r.daemons[i].gone(); life++ {
				r.worker(i, rng, min(time.Until(end), 300*time.Millisecond+time.Duration(rng.Int64N(int64(6*time.Second)))))
			}
		})
	}
	wg.Wait()
}

func (r *run) worker(i int, rng *rand.Rand, life time.Duration) {
	o := workerOrder{Target: r.targets[i], Seed: rng.Uint64(), Lanes: 1 + rng.IntN(3)}
	for _, a := range r.acts {
		o.Acts = append(o.Acts, a.Name)
	}
	r.play(i, rng, life, o)
}

// play lets a worker live for a while against daemon i.
func (r *run) play(i int, rng *rand.Rand, life time.Duration, o workerOrder) {
	w, err := r.role("worker", adversaryUID, o)
	if err != nil {
		r.failf(nil, "a worker: %v", err)
		time.Sleep(life)
		return
	}
	begun := time.Now()
	read := make(chan struct{})
	go func() { // ends with the process
		defer close(read)
		for w.out.Scan() {
			r.mu.Lock()
			r.counts[w.out.Text()]++
			r.story = append(r.story, played{monotonic(), r.daemons[i].name, w.out.Text(), o.Seed, time.Since(begun)})
			r.mu.Unlock()
		}
	}()
	ended := false
	if rng.IntN(3) == 0 { // stopped for a while
		ended = sleepUnless(read, life/3)
		w.cmd.Process.Signal(syscall.SIGSTOP)
		time.Sleep(min(life/3, 700*time.Millisecond))
		w.cmd.Process.Signal(syscall.SIGCONT)
	}
	if !ended {
		sleepUnless(read, life-time.Since(begun))
	}
	if rng.IntN(2) == 0 {
		w.cmd.Process.Kill()
	}
	w.in.Close()
	kill := time.AfterFunc(5*time.Second, func() { w.cmd.Process.Kill() })
	<-read
	w.cmd.Wait()
	kill.Stop()
	if code := w.cmd.ProcessState.ExitCode(); code == 1 {
		r.failf(nil, "against daemon %s: %s", r.daemons[i].name, w.errs.String())
	} else if code > 1 {
		r.failf(nil, "a worker against daemon %s, seed %d: %v\n%s", r.daemons[i].name, o.Seed, w.cmd.ProcessState, tail(w.errs.Bytes(), 4096))
	}
}

func sleepUnless(done chan struct{}, d time.Duration) bool {
	select {
	case <-done:
		return true
	case <-time.After(d):
		return false
	}
}

// settled waits until the sockets and regions of an adversary are gone, while
// the victims go on.
func (r *run) settled(n int) {
	r.t.Helper()
	var left string
	for end := time.Now().Add(restored); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		left = ""
		for _, d := range r.daemons {
			now, err := d.residue()
			if err != nil {
				left = err.Error()
			} else if now.Budgets["clients"] > 24 { // the victims and who asks
				left += fmt.Sprintf("daemon %s: %d clients, %d sockets; ", d.name, now.Budgets["clients"], now.Sockets)
			}
		}
		if left == "" {
			return
		}
	}
	r.failf(nil, "turn %d: %v after the adversary has gone: %s", n, restored, left)
}

// leftNothing holds what the daemons keep, when all have gone, against what
// they kept before anybody came.
func (r *run) leftNothing() {
	r.t.Helper()
	ending := endingConns
	if *runTime >= soak {
		ending = 0
	}
	for i, d := range r.daemons {
		var list []string
		var now residue
		for end := time.Now().Add(forgotten); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			var err error
			if now, err = d.residue(); err != nil {
				list = []string{err.Error()}
				continue
			}
			if list = now.over(r.empty[i], ending); len(list) == 0 {
				break
			}
		}
		if len(list) > 0 {
			stacks, _ := d.goroutines()
			r.failf(nil, "daemon %s, %v after all have gone, still has %s\ndescriptors %v, before %v\n%s", d.name, forgotten, strings.Join(list, "; "), now.files, r.empty[i].files, stacks[:min(len(stacks), 6000)])
		}
	}
}

// watchMemory looks at what the daemons take of memory.
func (r *run) watchMemory(stop chan struct{}) {
	said := false
	for {
		for _, d := range r.daemons {
			if n := d.resident(); n > memoryBytes+memorySlack && !said {
				said = true
				r.failf(nil, "daemon %s takes %d MiB of memory; limits.memory_bytes is %d MiB (file-backed and shared: %d MiB); a moment later: %s", d.name, n>>20, memoryBytes>>20, (d.proc("RssShmem:")+d.proc("RssFile:"))>>10, d.holds())
				r.heap(d)
			}
		}
		select {
		case <-stop:
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// heap has what a daemon's memory is held by written to a file, if a place is given.
func (r *run) heap(d *daemon) {
	if *runProfile == "" {
		return
	}
	if b, err := d.page("/debug/pprof/heap", 10*time.Second); err == nil {
		_ = os.WriteFile(filepath.Join(*runProfile, "heap-"+d.name), b, 0o644)
	}
}

func (r *run) report(last victimsReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	var never []string
	for _, a := range r.acts {
		n += r.counts[a.Name]
		if r.counts[a.Name] == 0 {
			never = append(never, a.Name)
		}
	}
	r.t.Logf("REPORT %d acts of %d kinds; the victims' %v; largest resident memory %d and %d MiB; %d stalls not judged", n, len(r.acts)-len(never), last.Done, r.daemons[0].peak.Load()>>20, r.daemons[1].peak.Load()>>20, r.unjudged)
	if len(never) > 0 {
		r.t.Logf("not drawn: %v", never)
	}
}
