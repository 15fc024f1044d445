// Package pagetest looks at the page of a node with a real browser.
package pagetest

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "keep the pictures of docs/quick-look.md and README.md")

// orders are what the browser's script has done to the world while it looks.
func (w *world) orders() map[string]func() {
	return map[string]func(){
		"congest":    func() { w.reading <- false },
		"clear":      func() { w.reading <- true },
		"crowd":      func() { w.crowded.Store(true) },
		"calm":       func() { w.crowded.Store(false) },
		"stop-peer":  func() { w.b.stop(w.t) },
		"start-peer": w.startB,
		"cut":        func() { w.relay.set(true) },
		"mend":       func() { w.relay.set(false) },
		"stop-node":  func() { w.a.stop(w.t) },
		"kill":       w.third.kill,
		"revive":     w.third.start,
		"start-node": w.startA,
		"hostile":    w.mapHostile,
		"peaceful":   w.unmapHostile,
	}
}

// TestPage plays drive.mjs in Chromium: each of its checks is a test of its own.
func TestPage(t *testing.T) {
	if testing.Short() {
		t.Skip("a browser takes a minute")
	}
	for _, program := range []string{"chromium", "node"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed (make setup)", program)
		}
	}
	if _, err := os.Stat("node_modules/playwright-core"); err != nil {
		t.Skip("playwright-core is not installed (make setup)")
	}
	w := newWorld(t)
	orders := w.orders()
	control := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if f := orders[r.URL.Path[1:]]; f != nil {
			f()
		} else {
			t.Errorf("no order %s", r.URL.Path)
		}
	}))
	defer control.Close()
	out, err := filepath.Abs("../../out/page")
	if err == nil {
		err = os.MkdirAll(out, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	drive := exec.CommandContext(ctx, "node", "drive.mjs", "http://"+w.a.cfg.HTTP.Listen, "http://"+w.b.cfg.HTTP.Listen, control.URL, out, "http://"+w.third.page)
	drive.Stderr = os.Stderr
	lines, err := drive.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := drive.Start(); err != nil {
		t.Fatal(err)
	}
	checks := 0
	for in := bufio.NewScanner(lines); in.Scan(); {
		var c struct {
			Name, Error string
			Ms          int
		}
		if json.Unmarshal(in.Bytes(), &c) != nil {
			t.Log(in.Text())
			continue
		}
		checks++
		t.Run(c.Name, func(t *testing.T) {
			t.Logf("after %d ms", c.Ms)
			if c.Error != "" {
				t.Error(c.Error)
			}
		})
	}
	if err := drive.Wait(); err != nil {
		t.Errorf("the script: %v", err)
	}
	if checks < 20 {
		t.Errorf("%d checks were made", checks)
	}
	checkPictures(t, filepath.Join(out, "quick-look"))
}
