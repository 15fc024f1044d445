package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestDemo plays the whole show on two real nodes.
func TestDemo(t *testing.T) {
	var out bytes.Buffer
	sum, err := Run(context.Background(), Config{Length: 5 * time.Second, Out: &out})
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if !sum.AddsUp() {
		t.Errorf("the account does not add up: %+v", sum)
	}
	if sum.Congested == 0 || sum.Cleared < sum.Congested || sum.Cuts == 0 {
		t.Errorf("congested %d times, cleared %d, cut %d", sum.Congested, sum.Cleared, sum.Cuts)
	}
	if v := sum.Volume; v.Writes == 0 || v.Reads < diskBlocks || v.Verified != diskBlocks {
		t.Errorf("volume %+v: want it written, and every block read", v)
	}
	for _, f := range sum.Flows {
		if f.Delivered == 0 || f.Delivered != f.Sent || f.Read != f.Sent {
			t.Errorf("flow %+v: want every datagram delivered and read", f)
		}
	}
	for _, line := range []string{"watch them in a browser: node A http://127.0.0.11:", "node B http://127.0.0.12:", "stops reading", "is congested", "ENOBUFS", "reads on", "is clear again", "is cut", "connection is down", "connection is up",
		"mapped on A over two paths", "is lost; the other one carries on", "is back", "Summary", "every block holds what was written last"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("nothing was told of %q", line)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

// TestInterrupt: the end of the context is a normal end, with an account, whenever
// it comes: before anything was started, meanwhile, and in the show.
func TestInterrupt(t *testing.T) {
	for _, after := range []time.Duration{0, 50 * time.Millisecond, 500 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(context.Background(), after)
		defer cancel()
		var out bytes.Buffer
		sum, err := Run(ctx, Config{Out: &out, TTY: true})
		if err != nil || !sum.AddsUp() {
			t.Errorf("ended after %v: %v, %+v\n%s", after, err, sum, out.String())
		}
		if !strings.Contains(out.String(), "\x1b[J") {
			t.Error("on a terminal the table is redrawn")
		}
	}
}

// TestJSON: every line is one object, the last one the summary.
func TestJSON(t *testing.T) {
	var out bytes.Buffer
	if _, err := Run(context.Background(), Config{Out: &out, JSON: true, Length: time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	var sum Summary
	for i, l := range lines {
		var e event
		if err := json.Unmarshal([]byte(l), &e); err != nil {
			t.Errorf("%q: %v", l, err)
		}
		if i == len(lines)-1 {
			json.Unmarshal([]byte(l), &sum)
		}
	}
	if !sum.AddsUp() {
		t.Errorf("the last line is no good summary: %s", lines[len(lines)-1])
	}
}

func TestAddsUp(t *testing.T) {
	disk := DiskAccount{Writes: 5, Reads: 9, Verified: 4, Blocks: 4}
	good := Account{Sent: 10, Delivered: 7, Cancelled: 1, Failed: 1, Unknown: 1, Read: 7}
	for name, change := range map[string]func(*Account){
		"one without outcome":   func(a *Account) { a.Sent++ },
		"one delivered, unread": func(a *Account) { a.Read-- },
		"one read twice":        func(a *Account) { a.Read += 2 },
		"one out of order":      func(a *Account) { a.Disorder++ },
	} {
		bad := good
		change(&bad)
		if (Summary{Flows: []Account{bad}, Volume: disk}).AddsUp() {
			t.Errorf("%s was not seen", name)
		}
	}
	for name, change := range map[string]func(*DiskAccount){
		"a wrong block":    func(v *DiskAccount) { v.Wrong++ },
		"a failed request": func(v *DiskAccount) { v.Failed++ },
		"a block not read": func(v *DiskAccount) { v.Verified-- },
		"no volume at all": func(v *DiskAccount) { *v = DiskAccount{} },
	} {
		bad := disk
		change(&bad)
		if (Summary{Flows: []Account{good}, Volume: bad}).AddsUp() {
			t.Errorf("%s was not seen", name)
		}
	}
	if !(Summary{Flows: []Account{good}, Volume: disk}).AddsUp() {
		t.Error("a good account was refused")
	}
}
