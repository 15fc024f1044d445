package page

import (
	"bufio"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestEventsTellTheTime: a stream begins with the time of day of the daemon, so that a browser whose clock is wrong
// shows it beside nothing that is of the daemon.
func TestEventsTellTheTime(t *testing.T) {
	s := serve(t, "tcp")
	begun := time.Now()
	c, _, a := s.open(t, "status")
	defer c.Close()
	body := bufio.NewReader(a.Body)
	first := ""
	for !strings.HasPrefix(first, "event: ") {
		line, err := body.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		first = line
	}
	if first != "event: alive\n" {
		t.Fatalf("the first event is %q, and what follows is shown with a time", first)
	}
	data, err := body.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var told struct {
		Unix int64 `json:"unix_ns,string"`
	}
	if err := json.Unmarshal([]byte(strings.TrimPrefix(data, "data: ")), &told); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	if at := time.Unix(0, told.Unix); at.Before(begun.Add(-time.Millisecond)) || at.After(time.Now().Add(time.Millisecond)) {
		t.Errorf("told %v, and it is %v", at, time.Now())
	}
}

// TestOneClock: the page takes the time of day from the daemon alone. clock.js has the browser's until that is told.
func TestOneClock(t *testing.T) {
	own := regexp.MustCompile(`Date\.now|new Date\(\)|performance\.now`)
	for place, f := range assets {
		if strings.HasPrefix(place, "/assets/uplot/") || place == "/assets/clock.js" {
			continue
		}
		for _, found := range own.FindAllString(string(f.body), -1) {
			t.Errorf("%s goes by %s, which clock.js is for", place, found)
		}
	}
}
