package blk

import (
	"math/rand"
	"sync"
	"time"
)

// OpSet is a set of operations; the empty set stands for all.
type OpSet uint8

// Ops is the set of the given operations.
func Ops(ops ...Op) (s OpSet) {
	for _, o := range ops {
		s |= 1 << o
	}
	return s
}

func (s OpSet) has(o Op) bool { return s == 0 || s&(1<<o) != 0 }

// Rule says which requests a Fault harms and how. A request that matches
// several rules gets the first one.
type Rule struct {
	Ops      OpSet
	Off, Len uint64  // only requests that touch this range; Len 0: any
	Skip     int     // let so many pass first
	Count    int     // then harm so many; 0: all
	Chance   float64 // harm one with this probability, from the seed; 0: certainly

	Delay time.Duration // hold it so long first
	Stall bool          // hold it until Release first
	Short uint64        // of a write that fails: the bytes at its beginning that are written
	Err   error         // how it fails; nil: it is carried out
}

// Fault is a layer that harms requests by rule. Same seed, rules and order of
// requests, same harm.
//
// A flush or FUA request that fails by a rule is a failed sync like any other:
// all later ones fail too (B7).
type Fault struct {
	Device
	sync syncGuard

	mu    sync.Mutex
	rand  *rand.Rand             // guarded by mu
	rules []*faultRule           // guarded by mu
	held  []func()               // guarded by mu; the work of Release
	timed map[*time.Timer]func() // guarded by mu; the work at the end of a delay
}

type faultRule struct {
	Rule
	seen, hit int
}

// NewFault puts a layer without rules over a device.
func NewFault(d Device, seed int64) *Fault {
	return &Fault{Device: d, rand: rand.New(rand.NewSource(seed)), timed: map[*time.Timer]func(){}}
}

// Add appends a rule. The returned function tells how many requests the rule has harmed.
func (f *Fault) Add(r Rule) (hits func() int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rule := &faultRule{Rule: r}
	f.rules = append(f.rules, rule)
	return func() int {
		f.mu.Lock()
		defer f.mu.Unlock()
		return rule.hit
	}
}

// Clear removes all rules. Held requests stay held.
func (f *Fault) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = nil
}

// Held is how many requests wait for Release.
func (f *Fault) Held() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.held)
}

// Release lets go, in their order, the requests that are stalled.
func (f *Fault) Release() {
	f.mu.Lock()
	held := f.held
	f.held = nil
	f.mu.Unlock()
	for _, carryOut := range held {
		carryOut()
	}
}

// Close releases held requests and ends the delays, so that it ends in bounded time, and
// closes the device.
func (f *Fault) Close() error {
	f.Clear()
	f.Release()
	f.mu.Lock()
	var due []func()
	for t, carryOut := range f.timed {
		if t.Stop() {
			due = append(due, carryOut)
			delete(f.timed, t)
		}
	}
	f.mu.Unlock()
	for _, carryOut := range due {
		carryOut()
	}
	return f.Device.Close()
}

// Unwrap is the device below.
func (f *Fault) Unwrap() Device { return f.Device }

// Submit harms the requests that match a rule and hands on the others.
func (f *Fault) Submit(batch []*Request) {
	handOn(f.Device, batch, func(r *Request) bool {
		if r.Err = f.sync.before(r); r.Err != nil {
			Complete([]*Request{r})
			return true
		}
		f.mu.Lock()
		rule, ok := f.match(r)
		if !ok {
			f.mu.Unlock()
			return false
		}
		// The rule was counted under the lock; the harm is done without it, because the
		// device below may complete the request in place and come back here.
		carryOut := func() { f.harm(r, rule) }
		switch {
		case rule.Stall:
			f.held = append(f.held, carryOut)
			f.mu.Unlock()
		case rule.Delay > 0:
			f.delay(rule.Delay, carryOut)
			f.mu.Unlock()
		default:
			f.mu.Unlock()
			carryOut()
		}
		return true
	})
}

// delay calls carryOut after d. Called with mu held.
func (f *Fault) delay(d time.Duration, carryOut func()) {
	var t *time.Timer
	t = time.AfterFunc(d, func() {
		f.mu.Lock()
		delete(f.timed, t)
		f.mu.Unlock()
		carryOut()
	})
	f.timed[t] = carryOut
}

// match finds the rule for a request and counts. Called with mu held.
func (f *Fault) match(r *Request) (Rule, bool) {
	for _, rule := range f.rules {
		if !rule.Ops.has(r.Op) || rule.Len > 0 && !overlap(rule.Off, rule.Len, r.Off, r.Len) {
			continue
		}
		rule.seen++
		if rule.seen <= rule.Skip || rule.Count > 0 && rule.hit >= rule.Count {
			continue
		}
		if rule.Chance > 0 && f.rand.Float64() >= rule.Chance {
			continue
		}
		rule.hit++
		return rule.Rule, true
	}
	return Rule{}, false
}

func overlap(a, an, b, bn uint64) bool {
	return an > 0 && bn > 0 && a-min(a, b) < bn && b-min(a, b) < an
}

// harm applies a rule to a request, except for the waiting.
func (f *Fault) harm(r *Request, rule Rule) {
	if rule.Err == nil {
		f.Device.Submit([]*Request{r})
		return
	}
	n := min(rule.Short, r.Len) &^ uint64(f.Info().LogicalBlock-1)
	if r.Op != OpWrite || n == 0 || f.Info().Check(r) != nil {
		f.fail(r, rule.Err)
		return
	}
	part := &Request{Op: OpWrite, Flags: r.Flags, Off: r.Off, Len: n, Buf: r.Buf[:n]}
	part.Queue = CompleteFunc(func(*Request) { f.fail(r, rule.Err) })
	f.Device.Submit([]*Request{part})
}

func (f *Fault) fail(r *Request, err error) {
	r.Err = err
	f.sync.after(r)
	Complete([]*Request{r})
}
