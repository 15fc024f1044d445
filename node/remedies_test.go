package node

import (
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/health"
)

// ruleLines are the lines that a remedy has somebody write.
var ruleLines = regexp.MustCompile(`a line (\[\[peers\]\]) and below it a line (address = "[^"]*")`)

// TestRemediesLoad: what a problem says to write into the configuration can be read, behind
// what is there.
func TestRemediesLoad(t *testing.T) {
	var x health.Exam
	x.Node(&health.Node{State: "serving", Lonely: true})
	x.Peer(&health.Peer{Remote: netip.MustParseAddr("10.9.0.7"), Up: 1})
	x.Logged(&health.Logged{Message: "connection refused", Peer: "fd00::7", Count: 1})
	const there = "version = 1\n[rds]\naddresses = [\"127.0.0.1\"]\n[[peers]]\naddress = \"10.1.0.0/16\"\n"
	seen := 0
	for _, p := range x.Problems() {
		m := ruleLines.FindStringSubmatch(p.Remedy)
		if m == nil {
			continue
		}
		seen++
		file := filepath.Join(t.TempDir(), "rdsd.toml")
		if err := os.WriteFile(file, []byte(there+m[1]+"\n"+m[2]+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := config.Load(config.LoadOptions{File: file})
		if err != nil || len(c.Peers) != 2 {
			t.Errorf("%v: %q: %v", p.Code, p.Remedy, err)
		}
	}
	if seen != 3 {
		t.Errorf("%d of 3 problems say which rule lacks: %+v", seen, x.Problems())
	}
}

// TestRaisedLimits: a limit that is near or reached is said to be mended by a reload just where that
// is true.
func TestRaisedLimits(t *testing.T) {
	reload := map[string]bool{}
	for _, k := range config.Keys() {
		reload[k.Name] = k.Reload
	}
	for key, says := range health.Limits() {
		if is, ok := reload[key]; !ok || is != says {
			t.Errorf("%s: it is reloaded: %v (known: %v), and is said to be: %v", key, is, ok, says)
		}
	}
}
