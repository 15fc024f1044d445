package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdsd/rdsd/node/config"
)

// stuck is a writer that takes nothing until it is let go.
type stuck struct {
	free chan struct{}
	mu   sync.Mutex
	b    bytes.Buffer
}

func (s *stuck) Write(p []byte) (int, error) {
	<-s.free
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

// A log that nobody reads holds up nobody who logs: lines are lost, counted, and
// named when the log goes on.
func TestLogWriterNeverBlocks(t *testing.T) {
	s := &stuck{free: make(chan struct{})}
	w := NewLogWriter(s)
	log := NewLogger(w, &config.Log{Format: "json"})
	const n = 20000
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range n {
			log.Info("a line like any other", "nr", i)
		}
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("logging waits for whoever reads the log")
	}
	lost := w.lost.Load()
	if lost == 0 || lost >= n {
		t.Fatalf("%d of %d lines were lost", lost, n)
	}
	if begun := time.Now(); true {
		w.Flush(20 * time.Millisecond)
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("the end of a process would wait %v for its log", took)
		}
	}
	close(s.free)
	w.Flush(20 * time.Second)
	out := s.b.String()
	if kept := strings.Count(out, "a line like any other"); kept != n-int(lost) {
		t.Errorf("%d lines are there, want %d", kept, n-int(lost))
	}
	if !strings.Contains(out, "log lines were lost") || !strings.Contains(out, `"lines":`) {
		t.Error("nothing says that lines were lost")
	}
	for line := range strings.Lines(out) {
		if !json.Valid([]byte(line)) {
			t.Errorf("among lines of JSON: %s", line)
		}
	}
	log.Info("and on")
	w.Flush(20 * time.Second)
	if !strings.Contains(s.b.String(), "and on") || w.bytes != 0 {
		t.Errorf("the log does not go on; %d bytes are left in the account", w.bytes)
	}
}

// gone is a writer whose reader is not there for a while.
type gone struct {
	bytes.Buffer
	away bool
}

func (g *gone) Write(p []byte) (int, error) {
	if g.away {
		return 0, errors.New("nobody is there")
	}
	return g.Buffer.Write(p)
}

// Lines that cannot be written are lost as those are that find no room, and named when the
// log goes on.
func TestLogWriterCountsFailures(t *testing.T) {
	g := &gone{away: true}
	w := NewLogWriter(g)
	log := slog.New(slog.NewTextHandler(w, nil))
	for range 3 {
		log.Info("a line like any other")
		w.Flush(30 * time.Second)
	}
	if lost := w.lost.Load(); lost != 3 || w.bytes != 0 {
		t.Errorf("of 3 lines %d are lost, %d bytes are left in the account", lost, w.bytes)
	}
	g.away = false
	log.Info("and on")
	w.Flush(30 * time.Second)
	if out := g.String(); !strings.Contains(out, "and on") || !strings.Contains(out, "log lines were lost: nobody read the log\" lines=3\n") {
		t.Errorf("the log has %q", out)
	}
	if lost := w.lost.Load(); lost != 3 || w.missing != 0 {
		t.Errorf("%d lines are lost, %d to be named", lost, w.missing)
	}
}
