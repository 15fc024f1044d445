package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
)

// ErrGone says that the guest ended, or was ended, before it answered.
var ErrGone = errors.New("the guest is gone")

// ExitError is a command that ended with another status than 0.
type ExitError struct {
	Argv []string
	Code int    // −1 when it has none
	Why  string // then why, else ""
}

// Error names the command and its status.
func (e *ExitError) Error() string {
	if e.Why != "" {
		return fmt.Sprintf("%s: %s", strings.Join(e.Argv, " "), e.Why)
	}
	return fmt.Sprintf("%s: exit status %d", strings.Join(e.Argv, " "), e.Code)
}

// Client is the host's end.
type Client struct {
	ready chan reply    // the agent's first word
	gone  chan struct{} // closed when the stream has ended

	mu   sync.Mutex
	out  *json.Encoder // guarded by mu
	next int           // guarded by mu
	jobs map[int]*Job  // guarded by mu
}

// NewClient reads from the stream until it ends.
func NewClient(stream io.ReadWriter) *Client {
	c := &Client{
		ready: make(chan reply, 1), gone: make(chan struct{}),
		out: json.NewEncoder(stream), jobs: map[int]*Job{},
	}
	go c.read(stream) // ends with the stream
	return c
}

// Ready waits until the agent answers, and returns what it says is wrong.
func (c *Client) Ready(ctx context.Context) error {
	select {
	case r := <-c.ready:
		if r.Err != "" {
			return errors.New(r.Err)
		}
		return nil
	case <-c.gone:
		return ErrGone
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Gone is closed when the guest is.
func (c *Client) Gone() <-chan struct{} { return c.gone }

func (c *Client) read(stream io.Reader) {
	defer close(c.gone)
	in := json.NewDecoder(stream)
	for {
		var r reply
		if in.Decode(&r) != nil {
			return
		}
		if r.ID == 0 {
			c.ready <- r
			continue
		}
		c.mu.Lock()
		j := c.jobs[r.ID]
		if r.Done {
			delete(c.jobs, r.ID)
		}
		c.mu.Unlock()
		if j != nil {
			j.take(r)
		}
	}
}

func (c *Client) send(r request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.Encode(r)
}

// Job is a command in the guest.
type Job struct {
	c    *Client
	id   int
	argv []string
	done chan struct{} // closed after end is set

	mu  sync.Mutex
	w   io.Writer // guarded by mu
	end reply     // set once, before done is closed
}

// Start runs a command in the guest. What it writes goes to w as it comes; w is not used
// after Wait has returned nil or an ExitError.
func (c *Client) Start(w io.Writer, env []string, argv ...string) (*Job, error) {
	c.mu.Lock()
	c.next++
	j := &Job{c: c, id: c.next, argv: argv, w: w, done: make(chan struct{})}
	c.jobs[j.id] = j
	c.mu.Unlock()
	if err := c.send(request{ID: j.id, Argv: argv, Env: env}); err != nil {
		return nil, errors.Join(ErrGone, err)
	}
	return j, nil
}

func (j *Job) take(r reply) {
	if r.Done {
		j.end = r
		close(j.done)
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	// A writer that fails loses output, as it would on the host.
	_, _ = j.w.Write(r.Out)
}

// Wait waits for the command's end. Its error is nil, an ExitError, ErrGone, or the cause of
// the context's end: then the command was told to end, with all that it started.
func (j *Job) Wait(ctx context.Context) error {
	select {
	case <-j.done:
	case <-j.c.gone:
		return fmt.Errorf("%s: %w", strings.Join(j.argv, " "), ErrGone)
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("%s: %w", strings.Join(j.argv, " "), context.Cause(ctx)), j.Kill())
	}
	if j.end.Code != 0 || j.end.Err != "" {
		return &ExitError{j.argv, j.end.Code, j.end.Err}
	}
	return nil
}

// Kill kills the command and all that is in its session's first process group.
func (j *Job) Kill() error { return j.c.send(request{ID: j.id, Kill: true}) }

// Run runs a command to its end and returns what it wrote.
func (c *Client) Run(ctx context.Context, env []string, argv ...string) (string, error) {
	var out locked
	j, err := c.Start(&out, env, argv...)
	if err != nil {
		return "", err
	}
	err = j.Wait(ctx)
	return out.String(), err
}

// locked is a buffer that may be read while a command still writes.
type locked struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (l *locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
