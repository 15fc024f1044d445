package simtest

import (
	"context"
	"iter"
	"slices"
	"time"

	"github.com/rdsd/rdsd/node/volume"
)

// task is a goroutine of a process of volumes. It runs until it waits, and nothing else runs
// meanwhile, so that a world of many is still one thread, from a seed.
type task struct {
	p     *volProcess
	f     func()
	next  func() (struct{}, bool)
	stop  func()
	yield func(struct{}) bool

	bells  []<-chan struct{} // it waits for
	parked bool
	waits  int // how often it has waited
	result int // of Wait
}

// errDead unwinds a task whose process has died.
type errDead struct{}

// spawn is Machine.Go: f begins in an event of its own.
func (p *volProcess) spawn(f func()) {
	w := p.v.w
	d := time.Duration(0)
	if w.chance(4) {
		d = w.upTo(100 * time.Microsecond)
	}
	w.After(d, p.event(func() { p.begin(f) }))
}

// begin runs f as a task until it waits first.
func (p *volProcess) begin(f func()) {
	t := &task{p: p, f: f}
	t.next, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		t.yield = yield
		t.f()
	})
	p.tasks = append(p.tasks, t)
	p.resume(t)
}

// resume lets a task run until it waits or ends.
func (p *volProcess) resume(t *task) {
	was := p.task
	p.task, t.parked, t.bells = t, false, nil
	_, more := t.next()
	p.task = was
	if !more {
		p.tasks = slices.DeleteFunc(p.tasks, func(o *task) bool { return o == t })
	}
}

// wait is Machine.Wait.
func (p *volProcess) wait(d time.Duration, bells ...<-chan struct{}) int {
	t, w := p.task, p.v.w
	if p.dead {
		panic(errDead{})
	}
	if t == nil {
		panic("simtest: a step of the shell waits")
	}
	if i := ring(bells); i >= 0 {
		return i
	}
	t.bells, t.parked = bells, true
	t.waits++
	if d != volume.Forever {
		my := t.waits
		w.After(max(d, 0)+w.upTo(100*time.Microsecond), p.event(func() {
			if t.parked && t.waits == my {
				t.result = -1
				p.resume(t)
			}
		}))
	}
	if !t.yield(struct{}{}) {
		panic(errDead{})
	}
	return t.result
}

// ring takes from the first bell that has something; -1: none has.
func ring(bells []<-chan struct{}) int {
	for i, b := range bells {
		select {
		case <-b:
			return i
		default:
		}
	}
	return -1
}

// wake lets the tasks run whose bell has rung, until none has.
func (p *volProcess) wake() {
	for more := true; more && !p.dead; {
		more = false
		for i := 0; i < len(p.either); i++ {
			if e := p.either[i]; e.other.Err() != nil {
				p.either = slices.Delete(p.either, i, i+1)
				e.end(e.other.Err())
				more = true
				break
			}
		}
		for _, t := range p.tasks {
			if !t.parked {
				continue
			}
			if i := ring(t.bells); i >= 0 {
				t.result = i
				p.resume(t)
				more = true
				break // the list is another one
			}
		}
	}
}

// event makes an event of this process: what happens in it may wake tasks. It does nothing
// when the process is dead, and waits while it is frozen.
func (p *volProcess) event(f func()) func() {
	return p.n.guard(func() {
		if p.dead {
			return
		}
		p.depth++
		f()
		p.depth--
		if p.depth == 0 {
			p.wake()
		}
	})
}

// kill ends the tasks of a process that has died: none of them does anything any more.
func (p *volProcess) kill() {
	p.dead = true
	tasks := p.tasks
	p.tasks = nil
	for _, t := range tasks {
		p.unwind(t)
	}
}

func (p *volProcess) unwind(t *task) {
	defer func() {
		if v := recover(); v != nil {
			if _, ok := v.(errDead); !ok {
				panic(v)
			}
		}
	}()
	p.task = t
	t.stop()
}

// --- contexts -----------------------------------------------------------------------

// limited is a context that ends by the world's clock, or with its parent.
type limited struct {
	context.Context // the parent
	done            chan struct{}
	err             error
	then            []*func()
}

func (c *limited) Done() <-chan struct{} { return c.done }
func (c *limited) Err() error            { return c.err }

// AfterFunc is what package context asks a foreign context for: f is called when it ends, and
// not in a goroutine.
func (c *limited) AfterFunc(f func()) (stop func() bool) {
	if c.err != nil {
		f()
		return func() bool { return false }
	}
	at := &f
	c.then = append(c.then, at)
	return func() bool {
		n := len(c.then)
		c.then = slices.DeleteFunc(c.then, func(o *func()) bool { return o == at })
		return len(c.then) < n
	}
}

func (c *limited) end(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	close(c.done)
	then := c.then
	c.then = nil
	for _, f := range then {
		(*f)()
	}
}

// timeout is Machine.Timeout.
func (p *volProcess) timeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	c := &limited{Context: ctx, done: make(chan struct{})}
	p.v.w.After(d, p.event(func() { c.end(context.DeadlineExceeded) }))
	return c, p.until(ctx, func(err error) { c.end(err) })
}

// until has end called when other has ended. What it returns does so now.
func (p *volProcess) until(other context.Context, end func(error)) (cancel context.CancelFunc) {
	e := &both{other, end}
	p.either = append(p.either, e)
	return func() {
		p.either = slices.DeleteFunc(p.either, func(o *both) bool { return o == e })
		end(context.Canceled)
	}
}

// both is a context that ends with another one, too.
type both struct {
	other context.Context
	end   func(error)
}

// eitherOf is Machine.Either.
func (p *volProcess) eitherOf(ctx, other context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	return ctx, p.until(other, func(error) { cancel() })
}
