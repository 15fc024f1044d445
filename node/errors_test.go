package node

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

// TestErrorTable: lines that say the same of the same thing are one, however few of
// them the log itself takes, and what is no warning is none.
func TestErrorTable(t *testing.T) {
	var suppressed atomic.Uint64
	quiet := slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelError + 1}))
	l := limitLog(quiet, 1, &suppressed)
	table := l.Handler().(*limitHandler).shared.errors
	before := time.Now()
	for i := range 5 {
		l.Warn("connection refused", "peer", netip.MustParseAddr("10.0.0.2"), "pid", i, "why", fmt.Errorf("reason %d", i))
		l.With("local", "10.0.0.1").Error("broken", "error", errors.New("disk"))
		l.Info("path", "peer", "10.0.0.2")
	}
	l.Warn("connection refused", "peer", "10.0.0.3")
	list, forgotten := table.list()
	if len(list) != 3 || forgotten != 0 {
		t.Fatalf("%+v, %d forgotten", list, forgotten)
	}
	for i, want := range []loggedError{
		{errorKey: errorKey{"connection refused", "peer=10.0.0.3"}, level: slog.LevelWarn, peer: "10.0.0.3", count: 1},
		{errorKey: errorKey{"broken", "local=10.0.0.1"}, level: slog.LevelError, why: "disk", count: 5},
		{errorKey: errorKey{"connection refused", "peer=10.0.0.2"}, level: slog.LevelWarn, why: "reason 4", peer: "10.0.0.2", count: 5},
	} {
		got := list[i]
		if got.first.Before(before) || got.last.Before(got.first) || want.count > 1 && got.first == got.last {
			t.Errorf("%s: first %v, last %v", got.message, got.first, got.last)
		}
		got.first, got.last = time.Time{}, time.Time{}
		if got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

// TestErrorTableBounds: whoever makes the daemon complain of ever new things, in ever
// longer words, gets no more of the table than its share, and no table grows.
func TestErrorTableBounds(t *testing.T) {
	table := newErrorTable()
	note := func(at int, message string, args ...any) {
		r := slog.NewRecord(time.Unix(int64(at), 0), slog.LevelWarn, message, 0)
		r.Add(args...)
		table.note(nil, &r)
	}
	note(0, "kept", "peer", "10.0.0.1")
	for i := range 10000 {
		note(i+1, "flood", "peer", fmt.Sprint("10.1.", i), "why", strings.Repeat("\xff", 10000))
	}
	list, forgotten := table.list()
	if len(list) != maxOfMessage+2 || forgotten != 0 {
		t.Fatalf("%d errors, %d forgotten", len(list), forgotten)
	}
	for i := range maxOfMessage { // the last of them are told one by one
		if peer := fmt.Sprint("10.1.", 9999-i); list[i].peer != peer || list[i].count != 1 {
			t.Errorf("%+v, want %s", list[i], peer)
		}
	}
	if rest := list[maxOfMessage]; rest.subject != "" || rest.peer != "" || rest.count != 10000-maxOfMessage || rest.first.Unix() != 1 || len(rest.why) > 3*maxErrorBytes {
		t.Errorf("the rest are %+v", rest)
	}
	if list[len(list)-1].message != "kept" {
		t.Errorf("what was there has gone: %+v", list[len(list)-1])
	}
	for i := range 2 * maxErrors {
		note(20000+i, fmt.Sprint("message ", i))
	}
	list, forgotten = table.list()
	if len(list) != maxErrors || forgotten != uint64(maxErrors+maxOfMessage+2) || list[0].message != fmt.Sprint("message ", 2*maxErrors-1) || len(table.of) != maxErrors {
		t.Errorf("%d errors of %d messages, %d forgotten, the last %q", len(list), len(table.of), forgotten, list[0].message)
	}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for k := range 1000 {
				note(k, "at once", "uid", i)
				table.list()
			}
		})
	}
	wg.Wait()
}

// TestErrorsOfANode: what the log says is in the answer of the daemon and, while it is
// news, among its problems; a peer that was refused is one by itself.
func TestErrorsOfANode(t *testing.T) {
	n, cfg := startOne(t)
	a := rdsdv1.NewAdminClient(dial(t, cfg))
	n.deps.Log.Warn("connection refused", "peer", netip.MustParseAddr("10.9.9.9"), "why", "no rule")
	n.deps.Log.Error("the state cannot be kept", "error", errors.New("no space"))
	resp, err := a.ListErrors(testContext(t), &rdsdv1.ListErrorsRequest{})
	if err != nil || len(resp.GetError()) < 2 {
		t.Fatalf("%v, %v", resp, err)
	}
	first := resp.GetError()[0]
	if first.GetMessage() != "the state cannot be kept" || first.GetWarning() || first.GetError() != "no space" || first.GetCount() != 1 || first.GetLastUnixNs() == 0 {
		t.Errorf("%v", first)
	}
	st, err := a.GetStatus(testContext(t), &rdsdv1.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	codes := map[string]string{}
	for _, p := range st.GetProblem() {
		codes[p.GetCode()] = p.GetText()
	}
	if !strings.Contains(codes["peer-refused"], "10.9.9.9") || !strings.Contains(codes["log-errors"], "no space") || st.GetHealthy() {
		t.Errorf("problems %v, healthy %v", codes, st.GetHealthy())
	}
	c, err := a.GetConfig(testContext(t), &rdsdv1.GetConfigRequest{})
	if err != nil || !strings.Contains(c.GetToml(), "[rds]\n") {
		t.Errorf("configuration %v, %v", c, err)
	}
}
