package rtrs

import (
	"fmt"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/transcript"
)

// transcriptWorlds is how many worlds' transcripts testdata/worlds.hash holds, a step for
// each transcriptStep of their time.
const (
	transcriptWorlds = 24
	transcriptStep   = 200 * time.Millisecond
)

// TestTranscripts: both ends of sessions do what they did. A step has all that can be seen
// from outside: messages as they leave, private data of dials and their answers, events,
// outcomes, the times of the next calls, and what an administrator is shown.
func TestTranscripts(t *testing.T) {
	transcript.Check(t, "testdata/worlds.hash", *update, transcriptWorlds, func(t *testing.T, seed int) (steps []string) {
		s := newSim(int64(seed)+1, true)
		if seed%2 == 1 {
			s.grid = time.Millisecond // deadlines are met, too, and not only passed
		}
		var cut func()
		cut = func() {
			s.shown()
			steps = append(steps, s.trace.String())
			s.trace.Reset()
			s.after(transcriptStep, cut)
		}
		s.after(transcriptStep, cut)
		if bad := s.try(s.run); bad != "" {
			t.Fatalf("seed %d: %s", seed, bad)
		}
		return append(steps, s.trace.String())
	})
}

// shown notes what an administrator is shown.
func (s *sim) shown() {
	b := s.trace
	for _, c := range s.clients {
		if !c.alive {
			continue
		}
		fmt.Fprintf(b, "%s: %+v, err %v\n", c.name, c.c.Stats(), c.c.Err())
		for _, p := range c.c.Paths() {
			fmt.Fprintf(b, " %v: %+v\n", p.Remote, p.Info())
		}
	}
	if s.srv.alive {
		fmt.Fprintf(b, "server: %+v\n", s.srv.s.Stats())
		for _, p := range s.srv.s.Paths() {
			fmt.Fprintf(b, " %v: %+v\n", p.Remote, p.Info())
		}
	}
}
