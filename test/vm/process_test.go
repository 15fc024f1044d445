package vm

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/node/volume"
)

// nodeEnv is set in a process that is a node, to its nodeSpec.
const nodeEnv = "RDSD_VM_NODE"

// nodeSpec says what a node in a process of its own does.
type nodeSpec struct {
	Addr   netip.Addr
	Name   string // "" : judged
	State  string // directory
	Export string // path of what it exports as "disk"
	Map    *volume.MapSpec
}

// nodeMain is a node if this process is to be one, until it is killed.
func nodeMain() {
	raw := os.Getenv(nodeEnv)
	if raw == "" {
		return
	}
	var s nodeSpec
	err := json.Unmarshal([]byte(raw), &s)
	var n *node
	if err == nil {
		n, err = openNode(s.Addr, s.State, os.Stdout, func(c *volume.Config) {
			c.DeadTimeout = 5 * time.Minute
			if s.Name != "" {
				c.Name = s.Name
			}
		})
	}
	if err == nil && s.Export != "" {
		_, err = n.Export(context.Background(), volume.ExportSpec{Name: "disk", Path: s.Export})
	}
	if err == nil && s.Map != nil && len(n.Mappings()) == 0 { // else it has come back by itself
		_, err = n.Map(context.Background(), *s.Map)
	}
	if err != nil {
		fmt.Println("node:", err)
		os.Exit(1)
	}
	fmt.Println("node: ready")
	select {}
}

// startNode starts a node in a process of its own.
func startNode(t *testing.T, s nodeSpec) *process {
	t.Helper()
	raw, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, "env", nodeEnv+"="+string(raw), os.Args[0])
	until(t, "a node is ready", time.Minute, func() bool { return strings.Contains(p.said(), "node: ready") })
	return p
}
