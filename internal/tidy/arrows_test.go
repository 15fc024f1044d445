package tidy

import (
	"flag"
	"fmt"
	"go/ast"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/internal/doctable"
)

var update = flag.Bool("update", false, "write the import table into docs/architecture.md")

// arrows says which packages of this module each package may import. A name
// that ends in /... stands for everything below it. Imports follow the arrows
// and never climb: to add one, add it here and say why.
//
// Tests are free: they may build a world out of anything.
var arrows = []struct {
	pkg string
	may []string
}{
	// Leaves.
	{"wire", nil},
	{"wire/rtrs", nil},
	{"wire/rnbd", []string{"wire/rtrs"}},
	{"wire/wiretest", nil}, // for tests
	{"cong", nil},
	{"roce", nil},
	// The connection manager counts packets as queue pairs do, and knows no more of them.
	{"roce/cm", []string{"roce"}},
	{"rdserr", nil},
	{"internal/buf", nil},
	{"internal/msgpool", nil},
	{"internal/freeport", nil},
	{"internal/ahead", nil},
	{"internal/plain", nil},
	{"internal/stats", nil},
	{"internal/counters", nil},
	{"internal/transcript", nil}, // for tests
	{"internal/tidy", nil},
	{"internal/mutate", nil}, // a program for developers
	{"internal/crash", nil},
	{"internal/guard", nil},
	{"internal/eintr", nil},
	{"internal/netlocal", []string{"internal/eintr"}},
	{"internal/unixsock", []string{"internal/eintr"}},
	{"internal/toll", nil},
	{"internal/toll/tolltest", nil},
	// The account of the node's memory refuses with an errno.
	{"internal/quota", []string{"rdserr"}},
	{"internal/accept", []string{"internal/guard"}},
	{"internal/reactor", []string{"internal/guard"}},

	// The contract of a link. Its frames lie in pooled buffers.
	{"transport", []string{"wire", "internal/buf"}},
	{"transport/transporttest", []string{"transport", "wire", "internal/buf"}},
	{"transport/tcp", []string{"transport", "wire", "rdserr", "internal/accept", "internal/buf", "internal/guard", "internal/reactor", "internal/stats"}},
	// It is called on a device's reactor, and panics of a link's owner end that link alone.
	{"transport/ib", []string{"transport", "wire", "rdserr", "internal/buf", "internal/guard", "internal/reactor", "internal/stats"}},
	// RoCEv2 in user space is a device of transport/ib.
	{"transport/ib/soft", []string{"transport", "transport/ib", "roce", "roce/cm", "internal/guard", "internal/netlocal", "internal/reactor"}},
	{"transport/sim", []string{"transport", "wire", "rdserr", "internal/buf", "internal/stats"}},

	// The protocol core. It names no concrete transport, and conn nothing of RDS.
	{"conn", []string{"transport", "wire", "rdserr", "internal/buf", "internal/stats"}},
	// rds writes batches, which are transport's, and charges who its sockets belong to.
	{"rds", []string{"conn", "cong", "transport", "wire", "rdserr", "internal/buf", "internal/stats", "internal/quota"}},
	{"rtrs", []string{"transport", "wire/rtrs", "rdserr"}},
	{"blk", []string{"rdserr", "internal/eintr", "internal/guard"}},
	{"blk/blktest", []string{"blk", "rdserr"}},
	{"blk/nbd", []string{"blk", "rdserr", "internal/accept", "internal/eintr", "internal/guard", "internal/reactor", "internal/unixsock"}},
	{"rnbd", []string{"rtrs", "blk", "wire/rtrs", "wire/rnbd", "rdserr"}},

	// The shell.
	// What a descriptor holds is what the wire carries: one train from ring to frame.
	{"shm", []string{"wire", "rdserr", "internal/crash", "internal/eintr", "internal/toll", "internal/unixsock"}},
	{"api/rdsd/v1", []string{"rdserr"}},
	// Of the hot messages, which both ends lay out and read by hand.
	{"api/rdsd/v1/fastwire", nil},
	{"node/volume", []string{"rtrs", "rnbd", "blk", "blk/nbd", "transport", "wire/rtrs", "wire/rnbd", "rdserr", "internal/eintr", "internal/guard", "internal/reactor", "internal/stats", "internal/quota", "internal/unixsock"}},
	{"node/config", []string{"node/volume", "rtrs", "rdserr", "shm", "internal/reactor"}},
	{"node/base", []string{"node/config", "rds", "rdserr", "internal/accept", "internal/counters", "internal/guard", "internal/quota", "internal/toll"}},
	// The registry of peers names the transports, for datagrams and for volumes; what a peer
	// of volumes is told that may not connect is a message of theirs.
	{"node/peers", []string{"node/base", "node/config", "transport", "transport/tcp", "wire/rtrs", "rdserr", "internal/netlocal", "internal/quota", "internal/reactor"}},
	{"node/health", []string{"internal/plain"}},
	{"node/access", []string{"node/base", "node/config", "rdserr", "internal/guard", "internal/quota"}},
	{"node/datagram", []string{"node/base", "node/config", "node/peers", "rds", "conn", "wire", "rdserr", "transport", "shm", "internal/buf", "internal/eintr", "internal/guard", "internal/netlocal", "internal/quota", "internal/reactor", "internal/stats"}},
	{"node/client", []string{"node/access", "node/base", "node/config", "node/datagram", "rds", "conn", "wire", "rdserr", "transport", "shm", "api/rdsd/v1", "api/rdsd/v1/fastwire", "internal/buf", "internal/guard", "internal/msgpool", "internal/quota", "internal/reactor", "internal/toll"}},
	// A client for tests knows the layouts and the messages, and nothing of a daemon's inside.
	{"node/client/clienttest", []string{"node/config", "shm", "api/rdsd/v1", "internal/freeport"}},
	{"node/page/hour", nil},
	// The page calls the services of the API, which it is given, in the name of whoever asks.
	{"node/page", []string{"node/page/hour", "node/access", "node/config", "node/datagram", "rds", "wire", "rdserr", "api/rdsd/v1", "internal/guard", "internal/netlocal", "internal/quota"}},
	{"node/service", []string{"node/access", "node/base", "node/client", "node/config", "node/datagram", "node/health", "node/page", "node/volume", "rds", "rtrs", "blk", "conn", "wire", "rdserr", "api/rdsd/v1", "internal/guard", "internal/msgpool", "internal/quota", "internal/stats", "internal/toll"}},
	// Assembly: of what its rooms stand on it knows what it has to hand them.
	// It also makes the RDMA devices, which need what all of its rooms have.
	{"node", []string{"node/access", "node/base", "node/client", "node/config", "node/datagram", "node/peers", "node/service", "node/volume", "rtrs", "blk", "shm", "transport", "transport/ib", "transport/ib/soft", "internal/accept", "internal/guard", "internal/netlocal", "internal/quota", "internal/unixsock"}},

	// What talks to a daemon from outside.
	{"sdk/go", []string{"api/rdsd/v1", "api/rdsd/v1/fastwire", "shm", "rdserr", "internal/msgpool"}},
	{"sdk/go/rdsdtest", []string{"sdk/go", "rdserr", "internal/freeport"}},
	{"sdk/go/examples/...", []string{"sdk/go", "rdserr"}},
	{"rdsd", []string{"rdsd/internal/..."}},
	// A volume is copied, and shown, over its NBD export, as any program does it.
	{"rdsd/internal/...", []string{"rdsd/internal/...", "node", "node/config", "sdk/go", "rdserr", "blk", "blk/nbd", "internal/freeport", "internal/guard", "internal/plain"}},

	// Test worlds: nothing a program imports.
	{"internal/simtest", []string{"node/base", "node/config", "node/datagram", "node/volume", "node/peers", "shm", "rds", "conn", "cong", "rnbd", "rtrs", "blk", "transport", "transport/sim", "transport/ib", "transport/ib/soft", "roce", "wire", "wire/rtrs", "wire/rnbd", "rdserr", "internal/buf", "internal/quota", "internal/reactor", "internal/stats"}},
	{"internal/await", nil},                                // for tests alone
	{"internal/slowclose", nil},                            // for tests alone
	{"internal/doctable", nil},                             // for tests alone
	{"internal/kernelpeer", []string{"transport", "wire"}}, // for tests alone
	{"internal/walk", nil},                                 // tests alone
	{"internal/bench", nil},                                // tests alone
	{"internal/killtest", nil},                             // tests alone
	{"internal/pagetest", nil},                             // tests alone
	{"internal/memtest", nil},                              // tests alone
	{"internal/monitoring", nil},                           // what Prometheus and Grafana are given, and its tests
	{"internal/processtest", nil},                          // tests alone
	// A hostile client and a hostile peer know the layouts and the frames, as
	// whoever reads the documents does, and nothing of a daemon's inside.
	{"internal/adversary", []string{"api/rdsd/v1", "internal/reactor", "roce", "roce/cm", "shm", "transport", "transport/ib", "transport/ib/soft", "wire", "wire/rtrs", "wire/rnbd"}},
	{"internal/volumetest", nil}, // tests alone
	{"interop/kernelnbd", nil},   // tests alone
	{"interop", []string{"sdk/go", "rdserr"}},
	// A kernel with RoCE, RTRS and RNBD in a virtual machine, and what runs commands there.
	{"test/vm/agent", nil},
	{"test/vm/init", []string{"test/vm/agent"}},
	{"test/vm", []string{"test/vm/agent", "internal/ahead"}},
}

func matches(pattern, pkg string) bool {
	if below, ok := strings.CutSuffix(pattern, "/..."); ok {
		return strings.HasPrefix(pkg, below+"/")
	}
	return pattern == pkg
}

func TestArrows(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		may, known := mayImport(s.dir)
		if !known && s.built {
			t.Errorf("%s: package %s is not in the import table (internal/tidy/arrows_test.go); add it and what it may import", s.path, s.dir)
			continue
		}
		for _, imp := range s.ast.Imports {
			p, _ := strconv.Unquote(imp.Path.Value)
			to, ours := strings.CutPrefix(p, module+"/")
			if !ours || !s.built {
				continue
			}
			if !anyMatch(may, to) {
				t.Errorf("%s: a new arrow %s -> %s; the import table (internal/tidy/arrows_test.go) allows %v", s.path, s.dir, to, may)
			}
		}
	}
}

func mayImport(pkg string) (may []string, known bool) {
	for _, a := range arrows {
		if matches(a.pkg, pkg) {
			return a.may, true
		}
	}
	return nil, false
}

func anyMatch(patterns []string, pkg string) bool {
	for _, p := range patterns {
		if matches(p, pkg) {
			return true
		}
	}
	return false
}

// TestArrowsDoNotClimb: the table itself has no cycle and keeps the promises
// the design is built on.
func TestArrowsDoNotClimb(t *testing.T) {
	reach := func(from, to string) bool {
		seen := map[string]bool{}
		var walk func(p string) bool
		walk = func(p string) bool {
			if seen[p] {
				return false
			}
			seen[p] = true
			may, _ := mayImport(p)
			for _, m := range may {
				for _, a := range arrows {
					name := strings.TrimSuffix(a.pkg, "/...")
					if a.pkg == p || !matches(m, a.pkg) && !matches(m, name) {
						continue
					}
					if a.pkg == to || walk(a.pkg) {
						return true
					}
				}
			}
			return false
		}
		return walk(from)
	}
	for _, a := range arrows {
		if a.pkg != "rdsd/internal/..." && reach(a.pkg, a.pkg) {
			t.Errorf("%s reaches itself", a.pkg)
		}
	}
	for _, c := range [][2]string{
		{"conn", "rds"}, {"conn", "transport/tcp"}, {"conn", "transport/sim"}, {"conn", "cong"},
		{"rds", "rtrs"}, {"rtrs", "rds"}, {"rds", "transport/tcp"}, {"rds", "api/rdsd/v1"},
		{"sdk/go", "node"}, {"sdk/go", "rds"}, {"node", "sdk/go"}, {"node", "transport/sim"}, {"rdsd", "transport/sim"},
	} {
		if reach(c[0], c[1]) {
			t.Errorf("the table lets %s reach %s", c[0], c[1])
		}
	}
}

// fanOut is how many rooms of this module a package may know, those below internal
// apart: a reader of one is not to need all. For node it is rooms of a node.
var fanOut = []struct {
	pkgs  []string
	among string
	most  int
}{
	{[]string{"wire", "wire/rtrs", "wire/rnbd", "cong", "roce", "roce/cm", "conn", "rds", "rtrs", "rnbd"}, "", 5},
	{[]string{"node"}, "node/", 8},
	{[]string{"node/access", "node/base", "node/config", "node/datagram", "node/peers", "node/volume", "node/client", "node/service"}, "node/", 8},
}

// TestFanOut holds the rooms to their number by what the table allows them, and the
// rooms of a node to not knowing the node.
func TestFanOut(t *testing.T) {
	for _, f := range fanOut {
		for _, p := range f.pkgs {
			may, known := mayImport(p)
			if !known {
				t.Errorf("package %s is not in the import table", p)
			}
			n := 0
			for _, m := range may {
				if strings.HasPrefix(m, f.among) && !strings.HasPrefix(m, "internal/") {
					n++
				}
				if m == "node" {
					t.Errorf("%s knows the node that puts it together", p)
				}
			}
			if n > f.most {
				t.Errorf("%s may import %d rooms %s..., want %d at most: %v", p, n, f.among, f.most, may)
			}
		}
	}
}

// protobuf are the packages that know the generated messages of the API: both ends of
// it, and the client of the adversary, which says what no SDK would. Everybody else
// has the SDK's types.
var protobuf = []string{"api/rdsd/v1", "node/...", "sdk/go", "internal/adversary"}

// raw are the methods of the SDK's client that hand out generated services.
var raw = []string{"AdminService", "VolumeService"}

// TestGeneratedTypesStop: what is generated from the API is a matter of its two
// ends. A program that is no end of it neither imports it nor has it by way of the
// SDK, where no import would show it.
func TestGeneratedTypesStop(t *testing.T) {
	const api = "api/rdsd/v1"
	for _, a := range arrows {
		if anyMatch(a.may, api) && !anyMatch(protobuf, a.pkg) {
			t.Errorf("the import table gives %s the generated types of %s; the SDK's types are for it", a.pkg, api)
		}
	}
	for _, s := range sources(t) {
		if s.test || !s.built || anyMatch(protobuf, s.dir) {
			continue
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			if x, ok := n.(*ast.SelectorExpr); ok && slices.Contains(raw, x.Sel.Name) {
				t.Errorf("%s: %s brings generated types; use Admin or Volumes of the SDK", s.fset.Position(x.Pos()), x.Sel.Name)
			}
			return true
		})
	}
}

// layouts are packages named like the rooms that speak them, so every importer
// calls them by one other name.
var layouts = map[string]string{"wire/rtrs": "rtrswire", "wire/rnbd": "rnbdwire"}

// TestLayoutsHaveOneName: a reader of rtrswire.Read knows which Read it is.
func TestLayoutsHaveOneName(t *testing.T) {
	seen := 0
	for _, s := range sources(t) {
		for _, imp := range s.ast.Imports {
			p, _ := strconv.Unquote(imp.Path.Value)
			want := layouts[strings.TrimPrefix(p, module+"/")]
			if want == "" {
				continue
			}
			seen++
			if imp.Name == nil || imp.Name.Name != want {
				t.Errorf("%s imports %s by another name than %s", s.path, p, want)
			}
		}
	}
	if seen == 0 {
		t.Error("nobody imports the layouts of volumes")
	}
}

// TestArrowsInDocs: docs/architecture.md shows the table as it is.
func TestArrowsInDocs(t *testing.T) {
	var w strings.Builder
	w.WriteString("| package | may import |\n|---|---|\n")
	for _, a := range arrows {
		may := append([]string(nil), a.may...)
		sort.Strings(may)
		text := "-"
		if len(may) > 0 {
			text = "`" + strings.Join(may, "` `") + "`"
		}
		fmt.Fprintf(&w, "| `%s` | %s |\n", a.pkg, text)
	}
	doctable.Check(t, filepath.Join(root(t), "docs", "architecture.md"), "./internal/tidy -update", *update, doctable.Table{Name: "arrows", Text: w.String()})
}
