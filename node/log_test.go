package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdsd/rdsd/node/config"
)

func TestLogFormats(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var b bytes.Buffer
		log := NewLogger(&b, &config.Log{Format: format, Level: config.LogLevel{Level: slog.LevelWarn}})
		log.Info("hidden")
		log.Warn("link down", "peer", "10.0.0.2", "path", 0)
		line := b.String()
		if strings.Contains(line, "hidden") {
			t.Errorf("%s: level not kept: %s", format, line)
		}
		if format == "json" {
			var m map[string]any
			if err := json.Unmarshal(b.Bytes(), &m); err != nil || m["peer"] != "10.0.0.2" {
				t.Errorf("json line %s: %v", line, err)
			}
		} else if !strings.Contains(line, `msg="link down" peer=10.0.0.2 path=0`) {
			t.Errorf("text line %s", line)
		}
	}
}

func TestLogIsRateLimitedPerMessage(t *testing.T) {
	var b bytes.Buffer
	var suppressed atomic.Uint64
	log := limitLog(slog.New(slog.NewTextHandler(&b, nil)), 2, &suppressed)
	now := time.Unix(1000, 0)
	log.Handler().(*limitHandler).shared.now = func() time.Time { return now }
	noisy := log.With("peer", "x")
	for range 100 {
		noisy.Warn("reset")
	}
	log.Warn("other")
	if got := strings.Count(b.String(), "msg=reset"); got != 2 {
		t.Errorf("%d lines, want 2", got)
	}
	if !strings.Contains(b.String(), "msg=other") {
		t.Error("one message silenced another")
	}
	if suppressed.Load() != 98 {
		t.Errorf("%d suppressed, want 98", suppressed.Load())
	}
	now = now.Add(time.Second)
	noisy.WithGroup("g").Warn("reset")
	if !strings.Contains(b.String(), "suppressed=98") {
		t.Errorf("the gap is not told:\n%s", b.String())
	}
}

func TestLogTableIsBounded(t *testing.T) {
	var suppressed atomic.Uint64
	log := limitLog(slog.New(slog.DiscardHandler), 1, &suppressed)
	h := &limitHandler{Handler: slog.NewTextHandler(&bytes.Buffer{}, nil), shared: log.Handler().(*limitHandler).shared}
	for i := range 3 * maxLogMessages {
		slog.New(h).Info(fmt.Sprint("message ", i))
	}
	if n := len(h.shared.messages); n > maxLogMessages+1 {
		t.Errorf("%d messages remembered", n)
	}
}
