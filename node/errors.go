package node

import (
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rdsd/rdsd/node/service"
)

// Bounds of the table of errors. What the lines are about comes from peers and
// clients, so whoever makes the daemon complain of ever new addresses or users gets one
// line for all but the last of them.
const (
	maxErrors     = 512 // distinct ones; the oldest makes room
	maxOfMessage  = 16  // of one message; the rest share one without a subject
	maxErrorBytes = 256 // of each text
)

// errorTable keeps the distinct warnings and errors of the log, with first, last and
// count, those among them that log.lines_per_second left out. A line costs a map
// look-up under a lock; one for which another makes room, a look at all there are.
type errorTable struct {
	mu        sync.Mutex
	by        map[errorKey]*loggedError // guarded by mu
	of        map[string]int            // guarded by mu; distinct ones of each message
	forgotten uint64                    // guarded by mu
}

type errorKey struct{ message, subject string }

type loggedError struct {
	errorKey
	level       slog.Level
	why, peer   string
	first, last time.Time
	count       uint64
}

func newErrorTable() *errorTable {
	return &errorTable{by: map[errorKey]*loggedError{}, of: map[string]int{}}
}

// note takes a line in; attrs are those of its logger.
func (t *errorTable) note(attrs []slog.Attr, r *slog.Record) {
	e := loggedError{errorKey: errorKey{message: shorten(r.Message)}, level: r.Level, first: r.Time, last: r.Time, count: 1}
	var subject []string
	take := func(a slog.Attr) bool {
		switch a.Key {
		case "error", "err", "why", "reason", "panic":
			e.why = shorten(a.Value.Resolve().String())
		case "peer":
			e.peer = shorten(a.Value.Resolve().String())
			fallthrough
		case "path", "local", "port", "address", "uid", "export", "mapping", "session", "device", "listener", "file", "what", "call", "name":
			subject = append(subject, a.Key+"="+a.Value.Resolve().String())
		}
		return true
	}
	for _, a := range attrs {
		take(a)
	}
	r.Attrs(take)
	e.subject = shorten(strings.Join(subject, " "))
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.by[e.errorKey]
	if old != nil {
		old.join(&e)
		return
	}
	if t.of[e.message] >= maxOfMessage && e.subject != "" {
		t.merge(e.message)
	}
	if len(t.by) >= maxErrors {
		t.remove(t.oldest(func(*loggedError) bool { return true }))
		t.forgotten++
	}
	t.add(&e)
}

// join adds a line, or several, to one that says the same.
func (e *loggedError) join(other *loggedError) {
	if !other.last.Before(e.last) {
		e.last, e.why = other.last, other.why
	}
	if other.first.Before(e.first) {
		e.first = other.first
	}
	e.level = max(e.level, other.level)
	e.count += other.count
}

// merge makes room for another of a message: the one that was not seen for the longest
// time joins those without a subject.
func (t *errorTable) merge(message string) {
	e := t.oldest(func(e *loggedError) bool { return e.message == message && e.subject != "" })
	t.remove(e)
	e.subject, e.peer = "", ""
	if rest := t.by[e.errorKey]; rest != nil {
		rest.join(e)
		return
	}
	t.add(e)
}

func (t *errorTable) add(e *loggedError) {
	t.by[e.errorKey] = e
	t.of[e.message]++
}

func (t *errorTable) remove(e *loggedError) {
	delete(t.by, e.errorKey)
	if t.of[e.message]--; t.of[e.message] == 0 {
		delete(t.of, e.message)
	}
}

// oldest is the one of some that was not seen for the longest time.
func (t *errorTable) oldest(of func(*loggedError) bool) (oldest *loggedError) {
	for _, e := range t.by {
		if of(e) && (oldest == nil || e.last.Before(oldest.last)) {
			oldest = e
		}
	}
	return oldest
}

// list returns what is there, the last one first.
func (t *errorTable) list() (list []loggedError, forgotten uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.by {
		list = append(list, *e)
	}
	slices.SortFunc(list, func(a, b loggedError) int {
		if c := b.last.Compare(a.last); c != 0 {
			return c
		}
		return strings.Compare(a.message+a.subject, b.message+b.subject)
	})
	return list, t.forgotten
}

// shorten bounds a text of others. What is cut is valid UTF-8 again, for the API's
// strings have to be.
func shorten(s string) string {
	if len(s) > maxErrorBytes {
		s = s[:maxErrorBytes]
	}
	return strings.ToValidUTF8(s, "\ufffd")
}

// errors is the node's table.
func (n *Node) errors() *errorTable {
	if h, ok := n.deps.Log.Handler().(*limitHandler); ok {
		return h.shared.errors
	}
	return newErrorTable() // a node of tests without a log
}

// loggedErrors is what the node's table holds, the last one first, and how many it has
// forgotten.
func (n *Node) loggedErrors() (list []service.LoggedError, forgotten uint64) {
	l, forgotten := n.errors().list()
	for i := range l {
		e := &l[i]
		list = append(list, service.LoggedError{Level: e.level, Message: e.message, Subject: e.subject, Why: e.why, Peer: e.peer,
			First: e.first, Last: e.last, Count: e.count})
	}
	return list, forgotten
}
