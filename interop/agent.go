package interop

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

const nudgeEvery = 25 * time.Millisecond

var errAgentGone = errors.New("interop: the kernel has ended")

// agent speaks to guest/agent.py: one JSON object a line each way.
type agent struct {
	w io.Writer

	mu     sync.Mutex
	nextID int             // guarded by mu
	jobs   map[int]*Job    // guarded by mu; by id, until done
	gone   bool            // guarded by mu
	boot   chan error      // the agent's first word
	ended  <-chan struct{} // closed by the reader at the line's end
}

// Job is a command running in the guest.
type Job struct {
	id     int
	op     string
	agent  *agent
	events chan Event
	done   chan struct{}
	result json.RawMessage // set before done is closed
	err    error           // set before done is closed
}

// Event is what a job reports on its way.
type Event struct {
	Event string `json:"event"`
	Sent  int    `json:"sent"`
	Got   int    `json:"got"`
	Port  uint16 `json:"port"`
}

type answer struct {
	ID    int             `json:"id"`
	Done  json.RawMessage `json:"done"`
	Error string          `json:"error"`
	Trace string          `json:"trace"`
	Event
}

func newAgent(w io.Writer, r io.Reader) *agent {
	ended := make(chan struct{})
	a := &agent{w: w, jobs: map[int]*Job{}, boot: make(chan error, 1), ended: ended}
	go func() {
		defer close(ended)
		a.read(r)
	}()
	go a.nudge()
	return a
}

// nudge repeats an empty line while anything is asked of the guest: its kernel
// misses, under traffic, one in some hundred signals that input has come, and
// then sleeps on it until there is more.
func (a *agent) nudge() {
	tick := time.NewTicker(nudgeEvery)
	defer tick.Stop()
	for {
		select {
		case <-a.ended:
			return
		case <-tick.C:
		}
		a.mu.Lock()
		if len(a.jobs) > 0 {
			_, _ = a.w.Write([]byte{'\n'}) // an error shows in a.ended
		}
		a.mu.Unlock()
	}
}

func (a *agent) read(r io.Reader) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		a.take(lines.Text())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone = true
	for _, j := range a.jobs {
		j.end(nil, errAgentGone)
	}
	clear(a.jobs)
	select {
	case a.boot <- errAgentGone:
	default:
	}
}

func (a *agent) take(line string) {
	var ans answer
	err := json.Unmarshal([]byte(line), &ans)
	if err == nil && ans.Error != "" {
		err = errors.New("guest: " + ans.Error)
		if ans.Trace != "" {
			err = fmt.Errorf("%w\n%s", err, ans.Trace)
		}
	}
	if ans.ID == 0 { // the boot report, or a line that was not understood
		select {
		case a.boot <- err:
		default:
		}
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	j := a.jobs[ans.ID]
	switch {
	case j == nil:
	case err != nil || ans.Done != nil:
		delete(a.jobs, ans.ID)
		j.end(ans.Done, err)
	default:
		select {
		case j.events <- ans.Event:
		default: // a test that does not listen shall not stop the rest
		}
	}
}

func (a *agent) start(op string, args map[string]any) (*Job, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.gone {
		return nil, errAgentGone
	}
	a.nextID++
	j := &Job{
		id: a.nextID, op: op, agent: a,
		events: make(chan Event, 4096), done: make(chan struct{}),
	}
	line := map[string]any{"id": j.id, "op": op}
	for k, v := range args {
		line[k] = v
	}
	raw, err := json.Marshal(line)
	if err != nil {
		return nil, err
	}
	a.jobs[j.id] = j
	if _, err := a.w.Write(append(raw, '\n')); err != nil {
		delete(a.jobs, j.id)
		return nil, fmt.Errorf("interop: write to the agent: %w", err)
	}
	return j, nil
}

func (j *Job) end(result json.RawMessage, err error) {
	j.result, j.err = result, err
	close(j.done)
}

// Wait waits for the job's end and decodes its result into out, unless nil.
func (j *Job) Wait(ctx context.Context, out any) error {
	select {
	case <-j.done:
	case <-ctx.Done():
		return fmt.Errorf("%s in the guest: %w", j.op, context.Cause(ctx))
	}
	if j.err != nil {
		return fmt.Errorf("%s: %w", j.op, j.err)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(j.result, out)
}

// Event waits for the job's next report of that name, passing over others.
func (j *Job) Event(ctx context.Context, name string) (Event, error) {
	for {
		select {
		case e := <-j.events:
			if e.Event == name {
				return e, nil
			}
			continue
		default:
		}
		select {
		case e := <-j.events:
			if e.Event == name {
				return e, nil
			}
		case <-j.done:
			if len(j.events) > 0 {
				continue
			}
			return Event{}, fmt.Errorf("%s ended without %q: %w: %s", j.op, name, j.err, j.result)
		case <-ctx.Done():
			return Event{}, fmt.Errorf("%s, waiting for %q: %w", j.op, name, context.Cause(ctx))
		}
	}
}

// Tell gives the job the word it waits for.
func (j *Job) Tell(ctx context.Context) error {
	return j.agent.call(ctx, "tell", map[string]any{"job": j.id, "word": "go"}, nil)
}

// Kill ends the job's process at once.
func (j *Job) Kill(ctx context.Context) error {
	return j.agent.call(ctx, "kill", map[string]any{"job": j.id}, nil)
}

func (a *agent) call(ctx context.Context, op string, args map[string]any, out any) error {
	j, err := a.start(op, args)
	if err != nil {
		return err
	}
	return j.Wait(ctx, out)
}
