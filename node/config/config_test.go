package config

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdserr"
)

func TestDefaultConfigIsValid(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Fatal(err)
	}
	c, err := Load(LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Origin("rds.port").String(); got != "default" {
		t.Errorf("origin %q, want default", got)
	}
}

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rdsd.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPrecedence(t *testing.T) {
	path := writeConfig(t, "version = 1\n[rds]\nport = 1001\nlanes = 3\naddresses = [\"10.0.0.1\", \"fd00::1\"]\n[api]\nadmin_uids=[7]\n")
	flags := Flags()
	for _, f := range flags {
		if f.Name() == "port" {
			f.Set("3003")
		}
	}
	c, err := Load(LoadOptions{File: path, Flags: flags,
		Env: []string{"RDSD_PORT=2002", "RDSD_RDS_LANES=5", "RDSD_NOSUCH=1", "HOME=/", "RDSD_API_ADMIN_UIDS=1, 2"}})
	if err != nil {
		t.Fatal(err)
	}
	if c.RDS.Port != 3003 || c.RDS.Lanes != 5 {
		t.Errorf("port %d lanes %d, want 3003 (flag) and 5 (environment)", c.RDS.Port, c.RDS.Lanes)
	}
	want := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}
	if !reflect.DeepEqual(c.RDS.Addresses, want) {
		t.Errorf("addresses %v, want %v: the file replaces the default", c.RDS.Addresses, want)
	}
	if !reflect.DeepEqual(c.API.AdminUIDs, []uint32{1, 2}) {
		t.Errorf("admin uids %v, want [1 2]", c.API.AdminUIDs)
	}
	for key, want := range map[string]string{"rds.port": "--port", "rds.lanes": "RDSD_RDS_LANES", "rds.addresses": path + ":5", "http.listen": "default"} {
		if got := c.Origin(key).String(); got != want {
			t.Errorf("origin of %s is %q, want %q", key, got, want)
		}
	}
	if len(c.Notes()) != 1 || !strings.Contains(c.Notes()[0], "RDSD_NOSUCH") {
		t.Errorf("notes %q, want one about RDSD_NOSUCH", c.Notes())
	}
}

// Each wrong file must be answered with its line, its key and what would be right.
func TestWrongFiles(t *testing.T) {
	for _, tc := range []struct{ name, text, where, key, want string }{
		{"no version", "[rds]\nport = 1\n", ":1", "version", "version = 1"},
		{"other version", "\nversion = 2\n", ":2", "version", "want 1"},
		{"syntax", "version = 1\n[rds\nport = 1\n", ":2", "", ""},
		{"unknown key", "version = 1\n[rds]\nprot = 1\n", ":3", "rds.prot", "rds.port"},
		{"wrong section", "version = 1\n[api]\nport = 1\n", ":3", "api.port", "rds.port"},
		{"unknown section", "version = 1\n[rsd]\nport = 1\n", ":2", "rsd", ""},
		{"type", "version = 1\n[rds]\n\nport = \"x\"\n", ":4", "rds.port", "1 to 65535"},
		{"overflow", "version = 1\n[rds]\nport = 70000\n", ":3", "rds.port", "1 to 65535"},
		{"negative size", "version = 1\n[limits]\nmemory_bytes = -1\n", ":3", "limits.memory_bytes", "1GiB"},
		{"size unit", "version = 1\n[limits]\nmemory_bytes = \"1G\"\n", ":3", "limits.memory_bytes", "GiB"},
		{"duration", "version = 1\n[rds]\nreconnect_max = \"5\"\n", ":3", "rds.reconnect_max", "5s"},
		{"duration number", "version = 1\n[rds]\nreconnect_max = 5\n", ":3", "rds.reconnect_max", "5s"},
		{"address", "version = 1\n[rds]\naddresses = [\"10.0.0\"]\n", ":3", "rds.addresses", "without port or mask"},
		{"any address", "version = 1\n[rds]\naddresses = [\"0.0.0.0\"]\n", ":3", "rds.addresses", "without port"},
		{"link-local address", "version = 1\n[rds]\naddresses = [\"fe80::1\"]\n", ":3", "rds.addresses", "link-local"},
		{"address of a link", "version = 1\n[rds]\naddresses = [\"fe80::1%eth0\"]\n", ":3", "rds.addresses", "without port"},
		{"no address", "version = 1\n[rds]\naddresses = []\n", ":3", "rds.addresses", "empty"},
		{"address twice", "version = 1\n[rds]\naddresses = [\"10.0.0.1\",\"10.0.0.1\"]\n", ":3", "rds.addresses", "twice"},
		{"lanes", "version = 1\nrds.lanes = 9\n", ":2", "rds.lanes", "1 to 8"},
		{"heartbeat", "version = 1\n[rds]\nheartbeat_timeout = \"1s\"\n", ":3", "rds.heartbeat_timeout", "longer than"},
		{"congestion", "version = 1\n[rds]\ntcp_congestion = \"no such\"\n", ":3", "rds.tcp_congestion", "is no name of a congestion control"},
		{"remote without insecure", "version = 1\n[api]\nremote_listen = \"10.0.0.1:1\"\n", ":3", "api.remote_listen", "insecure = true"},
		{"relative socket", "version = 1\n[api]\nsocket = \"x.sock\"\n", ":3", "api.socket", "absolute"},
		{"abstract socket without a name", "version = 1\n[api]\nsocket = \"@\"\n", ":3", "api.socket", "absolute"},
		{"mode", "version = 1\n[api]\nsocket_mode = \"rw\"\n", ":3", "api.socket_mode", "0660"},
		{"group", "version = 1\n[api]\nsocket_group = \"no such group\"\n", ":3", "api.socket_group", "`getent group` tells the number"},
		{"page of peers without a peer", "version = 1\n[http]\npeer_page = \"http://10.0.0.1/\"\n", ":3", "http.peer_page", "{address}"},
		{"page of peers without a scheme", "version = 1\n[http]\npeer_page = \"{address}:16386/\"\n", ":3", "http.peer_page", "is no URL of http or https"},
		{"page of peers of no host", "version = 1\n[http]\npeer_page = \"http:///{address}\"\n", ":3", "http.peer_page", "is no URL"},
		{"page of peers in a file", "version = 1\n[http]\npeer_page = \"ftp://{address}/\"\n", ":3", "http.peer_page", "is no URL of http or https"},
		{"page of peers too long", "version = 1\n[http]\npeer_page = \"http://{address}/" + strings.Repeat("x", 240) + "\"\n", ":3", "http.peer_page", "is no URL"},
		{"name in capitals", "version = 1\n[http]\nnames = [\"Node\"]\n", ":3", "http.names", "in lower case"},
		{"name with a port", "version = 1\n[http]\nnames = [\"node:80\"]\n", ":3", "http.names", "without port"},
		{"level", "version = 1\n[log]\nlevel = \"loud\"\n", ":3", "log.level", "debug"},
		{"range order", "version = 1\n[[ports]]\nuid = 1\nrange = \"9-5\"\n", ":4", "ports.range", "5000-5999"},
		{"range reserved", "version = 1\n[[ports]]\nuid = 1\nrange = \"1-5\"\n", ":4", "ports[0].range", "2 to 65535"},
		{"grant to nobody", "version = 1\n[[ports]]\nuid = 1\nrange=\"5\"\n[[ports]]\nrange = \"5\"\n", ":5", "ports[1]", "uid"},
		{"subnet", "version = 1\n[[peers]]\naddress = \"10.0.0.1/24\"\n", ":3", "peers.address", "10.0.0.0/24"},
		{"subnet missing", "version = 1\n[[peers]]\naddress = \"10.0.0.1\"\n[[peers]]\nkernel = true\n", ":4", "peers[1].address", "subnet"},
		{"range missing", "version = 1\n[[ports]]\nuid = 1\n", ":2", "ports[0].range", "5000-5999"},
		{"less memory than a socket may have", "version = 1\n[limits]\nmemory_bytes = \"32MiB\"\n", ":3", "rds.send_buffer_max_bytes", "64MiB is more than limits.memory_bytes, 32MiB; want at most \"32MiB\""},
		{"a socket with more than all memory", "version = 1\n[rds]\nrecv_buffer_max_bytes = \"2GiB\"\n", ":3", "rds.recv_buffer_max_bytes", "2GiB is more than limits.memory_bytes, 1GiB"},
		{"a socket with next to nothing", "version = 1\n[rds]\nrecv_buffer_bytes = 4096\nrecv_buffer_max_bytes = 4095\n", ":3", "rds.recv_buffer_bytes", "at most rds.recv_buffer_max_bytes"},
		{"capital key", "version = 1\n[rds]\nport = 1\nPort = 2\n", ":4", "rds.Port", "unknown key; did you mean rds.port?"},
		{"capital section", "version = 1\n[RDS]\nport = 2\n", ":2", "RDS", "unknown key; did you mean rds?"},
		{"capital table", "version = 1\n[[peers]]\naddress = \"10.0.0.1\"\ndeny = true\n[[Peers]]\naddress = \"10.0.0.0/8\"\n", ":5", "Peers", "did you mean peers?"},
		{"capital key of a table", "version = 1\n[[volumes.exports]]\nname = \"x\"\nPath = \"/d\"\n", ":4", "volumes.exports.Path", "did you mean volumes.exports.path?"},
		{"capital key inline", "version = 1\npeers = [{Address=\"10.0.0.1\"}]\n", ":2", "peers.Address", "did you mean peers.address?"},
		{"capital key in quotes", "version = 1\n\"RDS\".port = 1\n", ":2", "RDS.port", "did you mean rds.port?"},
		{"capital version", "Version = 1\n", ":1", "Version", "did you mean version?"},
		{"subnet twice", "version = 1\n[[peers]]\naddress = \"10.0.0.1\"\n[[peers]]\naddress = \"10.0.0.1/32\"\n", ":5", "peers[1].address", "peers[0]"},
		{"one port for both", "version = 1\n[volumes]\nport = 16385\n", ":3", "volumes.port", "is rds.port as well"},
		{"string for a number", "version = 1\n[rds]\nport = \"1\"\n", ":3", "rds.port", "a TOML string does not fit here; want a TCP port"},
		{"number for an address", "version = 1\n[rds]\naddresses = [1]\n", ":3", "rds.addresses", `"1" is not an address; want addresses of this machine`},
		{"the second is a number", "version = 1\n[rds]\naddresses = [\"10.0.0.1\", 1]\n", ":3", "rds.addresses", `"1" is not an address`},
		{"number for a subnet in a list", "version = 1\n[volumes]\nallow = [16388]\nport = 16388\n", ":3", "volumes.allow", `"16388" is not an address or subnet`},
		{"no address in words of the file", "version = 1\n[rds]\naddresses = [\"10.0.0\"]\n", ":3", "rds.addresses", `rds.addresses: "10.0.0" is not an address; want`},
		{"negative in words of the file", "version = 1\n[limits]\nmemory_bytes = -1\n", ":3", "limits.memory_bytes", "limits.memory_bytes: -1 is out of range; want"},
		{"negative user", "version = 1\n[[peers]]\naddress = \"10.0.0.1\"\nuids = [-1]\n", ":4", "peers.uids", "peers.uids: -1 is out of range; want"},
		{"no such number", "version = 1\nrds.port = 99999999999999999999\n", ":2", "rds.port", "rds.port: the number is out of range; want"},
		{"list of sections", "version = 1\n[[rds]]\n", ":2", "rds", "rds: an array table does not fit here"},
		{"nothing like a key", "version = 1\n[[peers]]\naddress = \"10.0.0.1\"\nmatch = 1\n", ":4", "peers.match", "unknown key; docs/operations.md lists them"},
		{"volume port", "version = 1\n[volumes]\nport = 0\n", ":3", "volumes.port", "1 to 65535"},
		{"volume listen", "version = 1\n[volumes]\nlisten = \"yes\"\n", ":3", "volumes.listen", "always"},
		{"volume depth", "version = 1\n[volumes]\nqueue_depth = 4000\nmax_io_bytes = \"1MiB\"\n", ":3", "volumes.queue_depth", "less of one of them"},
		{"volume state", "version = 1\n[volumes]\nstate_dir = \"x\"\n", ":3", "volumes.state_dir", "absolute"},
		{"volume name", "version = 1\n[volumes]\nname = \"a.b\"\n", ":3", "volumes.name", "without"},
		{"volume loss", "version = 1\n[volumes]\non_loss = \"cry\"\n", ":3", "volumes.on_loss", "wait"},
		{"volume timeout", "version = 1\n[volumes]\nio_timeout = \"1ms\"\n", ":3", "volumes.io_timeout", "100ms"},
		{"export unknown key", "version = 1\n[[volumes.exports]]\nnmae = \"x\"\n", ":3", "volumes.exports.nmae", "volumes.exports.name"},
		{"export size", "version = 1\n[[volumes.exports]]\nname = \"x\"\nsize = \"1G\"\n", ":4", "volumes.exports.size", "10GiB"},
		{"export relative", "version = 1\n[[volumes.exports]]\nname = \"x\"\npath = \"d\"\n", ":2", "volumes.exports[0]", "absolute"},
		{"export climbs", "version = 1\n[[volumes.exports]]\nname = \"../x\"\npath = \"/d\"\n", ":2", "volumes.exports[0]", ".."},
		{"export twice", "version = 1\n[[volumes.exports]]\nname = \"x\"\npath = \"/d\"\n[[volumes.exports]]\nname = \"x\"\npath = \"/e\"\n", ":6", "volumes.exports[1].name", "exports[0]"},
		{"root relative", "version = 1\n[[volumes.roots]]\npath = \"d\"\n", ":2", "volumes.roots[0]", "absolute"},
		{"inline", "version = 1\npeers = [{address=\"10.0.0.1\"},{address=\"10.0.0.1\"}]\n", ":2", "peers[1].address", "peers[0]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := writeConfig(t, tc.text)
			_, err := Load(LoadOptions{File: path})
			e, ok := errors.AsType[*Error](err)
			if !ok {
				t.Fatalf("error %v, want a *ConfigError", err)
			}
			t.Log(strings.ReplaceAll(err.Error(), filepath.Dir(path), ""))
			if tc.where != "" && e.Where != path+tc.where {
				t.Errorf("where %q, want line %s", e.Where, tc.where)
			}
			if e.Key != tc.key {
				t.Errorf("key %q, want %q", e.Key, tc.key)
			}
			if !strings.Contains(e.Error(), tc.want) {
				t.Errorf("%q does not say %q", e, tc.want)
			}
			for _, word := range []string{"ParseAddr", "uint", "struct", "config.", "cannot be stored", "64-bit"} {
				if strings.Contains(strings.ReplaceAll(err.Error(), path, ""), word) {
					t.Errorf("%q says %q to who writes a file", err, word)
				}
			}
		})
	}
}

// TestFileOfTheLargestSize holds the bound on a configuration file at its edge: a file of exactly that size is read, one byte more is
// refused and named by the bound, although everything in front of that byte could be read.
func TestFileOfTheLargestSize(t *testing.T) {
	const head = "version = 1\n[rds]\nport = 1001\n#"
	full := head + strings.Repeat("x", maxConfigBytes-len(head))
	c, err := Load(LoadOptions{File: writeConfig(t, full)})
	if err != nil || c.RDS.Port != 1001 {
		t.Fatalf("a file of %d bytes: %v", len(full), err)
	}
	c, err = Load(LoadOptions{File: writeConfig(t, full+"x")})
	if e, ok := errors.AsType[*Error](err); !ok || c != nil || e.Problem != "larger than 1048576 bytes" {
		t.Fatalf("a file of %d bytes: %v, want it refused", len(full)+1, err)
	}
}

func TestWrongEnvironmentAndFlag(t *testing.T) {
	_, err := Load(LoadOptions{Env: []string{"RDSD_PORT=http", "RDSD_LOG_LEVEL=loud"}})
	if err == nil || !strings.Contains(err.Error(), "RDSD_PORT: rds.port:") || !strings.Contains(err.Error(), "RDSD_LOG_LEVEL: log.level:") {
		t.Errorf("%v, want both variables named", err)
	}
	flags := Flags()
	for _, f := range flags {
		if f.Name() == "address" {
			f.Set("10.0.0.300")
		}
	}
	if _, err = Load(LoadOptions{Flags: flags}); err == nil || !strings.HasPrefix(err.Error(), `--address: rds.addresses: "10.0.0.300" is not an address; want`) {
		t.Errorf("%v, want --address named", err)
	}
	if _, err = Load(LoadOptions{File: "/nonexistent/x.toml"}); err == nil || !strings.Contains(err.Error(), "/nonexistent/x.toml: no such file") {
		t.Errorf("%v, want the file named", err)
	}
	if _, err = Load(LoadOptions{Env: []string{"RDSD_CONFIG=/nonexistent/y.toml"}}); err == nil {
		t.Error("RDSD_CONFIG was not read")
	}
}

func TestDumpLoadsAgain(t *testing.T) {
	path := writeConfig(t, `version = 1
[rds]
send_buffer_bytes = "96KiB"
addresses = ["::1"]
[[ports]]
gid = 5
range = "5000-5999"
exclusive = true
[[peers]]
address = "10.1.0.0/16"
kernel = true
[[volumes.exports]]
name = "disk"
path = "/srv/disk"
allow = ["10.1.0.0/16"]
[[volumes.exports]]
name = "mem"
size = "1MiB"
[[volumes.roots]]
path = "/srv/{session}"
sessions = ["a*"]
`)
	c, err := Load(LoadOptions{File: path})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := c.DumpOrigins(&b); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), path+":3") {
		t.Errorf("no origin in\n%s", b.String())
	}
	c2, err := Load(LoadOptions{File: writeConfig(t, b.String())})
	if err != nil {
		t.Fatalf("%v in\n%s", err, b.String())
	}
	c.file, c.origins, c.numbers, c2.file, c2.origins, c2.numbers = "", nil, nil, "", nil, nil
	c.API.AdminUIDs, c2.API.AdminUIDs = nil, nil // nil and empty are one
	c.Reactor.CPUs, c2.Reactor.CPUs = nil, nil
	c.Volumes.Allow, c2.Volumes.Allow = nil, nil
	if !reflect.DeepEqual(c, c2) {
		t.Errorf("dumped\n%+v\nloaded\n%+v", c, c2)
	}
}

func TestExampleFileLoads(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "rdsd.example.toml")
	c, err := Load(LoadOptions{File: path})
	if err != nil {
		t.Fatal(err)
	}
	for i := range keys { // every key is shown
		if c.Origin(keys[i].Name).Kind != "file" {
			t.Errorf("%s does not show %s", path, keys[i].Name)
		}
	}
	if len(c.Ports) == 0 || len(c.Peers) == 0 {
		t.Error("the example shows no [[ports]] or no [[peers]]")
	}
	for _, key := range tableKeys() {
		table, field := key[:strings.LastIndexByte(key, '.')], key[strings.LastIndexByte(key, '.')+1:]
		shown := false
		for i := range 4 {
			shown = shown || c.Origin(fmt.Sprintf("%s[%d].%s", table, i, field)).Kind == "file"
		}
		if !shown {
			t.Errorf("%s does not show %s", path, key)
		}
	}
}

func TestMayBind(t *testing.T) {
	uid, gid := uint32(1000), uint32(50)
	c := Default()
	c.Ports = []PortGrant{
		{UID: &uid, Range: PortRange{5000, 5999}, Exclusive: true},
		{GID: &gid, Range: PortRange{100, 200}},
	}
	for _, tc := range []struct {
		id   Identity
		port uint16
		ok   bool
	}{
		{Identity{UID: 1000}, 5000, true},
		{Identity{UID: 1001}, 5000, false},
		{Identity{UID: 1001}, 5999, false},
		{Identity{UID: 1001}, 6000, true},
		{Identity{UID: 0}, 5000, true},
		{Identity{UID: 0, Remote: true}, 5000, false},
		{Identity{UID: 1000, Remote: true}, 5000, false},
		{Identity{UID: 9, GID: 50}, 150, true},
		{Identity{UID: 9, GID: 51}, 150, false},
		{Identity{UID: 9}, 1023, false},
		{Identity{UID: 9}, 1024, true},
		{Identity{UID: 9}, 0, true},
		{Identity{UID: 1000, ForeignUser: true}, 5000, false},
		{Identity{UID: 0, ForeignUser: true}, 5000, false}, // where the number of strangers is 0
		{Identity{UID: 1000, ForeignGroup: true}, 5000, true},
		{Identity{UID: 9, GID: 50, ForeignGroup: true}, 150, false},
		{Identity{UID: 9, GID: 50, ForeignUser: true}, 150, true},
	} {
		err := c.MayBind(tc.id, tc.port)
		if (err == nil) != tc.ok {
			t.Errorf("%+v port %d: %v, want ok=%v", tc.id, tc.port, err, tc.ok)
		}
		if err != nil && !errors.Is(err, rdserr.ErrPerm) {
			t.Errorf("%v is not EACCES", err)
		}
	}
}

// TestBindable: it is what MayBind says of each port, in order, whatever grants lie over each other.
func TestBindable(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	uid, gid := uint32(1000), uint32(50)
	for range 300 {
		c := Default()
		c.RDS.LowPortsBelow = []uint16{0, 2, 3, 1024, 65535}[rng.Intn(5)]
		edges := []int{1, 2, 3, 1023, 1024, 65534, 65535}
		for range rng.Intn(6) {
			a, b := 2+rng.Intn(65534), 2+rng.Intn(65534)
			if rng.Intn(2) == 0 { // close to each other, and to the ends
				a, b = 2+rng.Intn(8), 2+rng.Intn(8)
			}
			if rng.Intn(4) == 0 {
				b = 65535
			}
			g := PortGrant{Range: PortRange{uint16(min(a, b)), uint16(max(a, b))}, Exclusive: rng.Intn(3) > 0}
			if rng.Intn(2) == 0 {
				g.UID = &uid
			} else {
				g.GID = &gid
			}
			c.Ports = append(c.Ports, g)
			edges = append(edges, a-1, a, a+1, b-1, b, b+1)
		}
		for range 50 {
			edges = append(edges, 2+rng.Intn(65534))
		}
		for _, id := range []Identity{{UID: 0}, {UID: 0, Remote: true}, {UID: 1000}, {UID: 9, GID: 50}, {UID: 9}, {UID: 1000, GID: 50, Remote: true}, {UID: 0, GID: 50, ForeignUser: true}, {UID: 1000, GID: 50, ForeignGroup: true}} {
			list := c.Bindable(id)
			for i, r := range list {
				if r.First < 2 || r.First > r.Last || i > 0 && int(r.First) <= int(list[i-1].Last)+1 {
					t.Fatalf("%v of %v", r, list)
				}
			}
			for _, p := range edges {
				if p < 2 || p > 65535 {
					continue
				}
				in := slices.ContainsFunc(list, func(r PortRange) bool { return r.Contains(uint16(p)) })
				if may := c.MayBind(id, uint16(p)) == nil; in != may {
					t.Fatalf("%+v, port %d: %v, and of %v it is said %v; grants %+v, low %d", id, p, may, list, in, c.Ports, c.RDS.LowPortsBelow)
				}
			}
		}
	}
}

func TestIsAdmin(t *testing.T) {
	var c Config
	c.API.AdminUIDs = []uint32{1001, 1002}
	for id, want := range map[Identity]bool{
		{UID: 0}: true, {UID: 999}: true, {UID: 1001}: true, {UID: 1002}: true, {UID: 1000}: false, {UID: 1003}: false,
		{Remote: true}: false, {Remote: true, UID: 999}: false, {Remote: true, UID: 1001}: false,
	} {
		if got := c.IsAdmin(id, 999); got != want {
			t.Errorf("%+v: %v", id, got)
		}
	}
}

// TestPrefixesOfIPv4: however a subnet of IPv4 is written, its addresses lie in it.
func TestPrefixesOfIPv4(t *testing.T) {
	for text, want := range map[string]string{
		"::ffff:10.0.0.0/104": "10.0.0.0/8", "::ffff:10.0.0.7/128": "10.0.0.7/32", "::ffff:10.0.0.7": "10.0.0.7/32", "::ffff:0.0.0.0/96": "0.0.0.0/0",
		"10.0.0.0/8": "10.0.0.0/8", "fd00::/64": "fd00::/64", "::/0": "::/0", "::/80": "::/80",
	} {
		var p Prefix
		if err := p.UnmarshalText([]byte(text)); err != nil || p.String() != want {
			t.Errorf("%s is %v (%v), want %s", text, p, err, want)
		}
	}
	var p Prefix
	if err := p.UnmarshalText([]byte("::ffff:10.0.0.7/104")); err == nil || !strings.Contains(err.Error(), `"10.0.0.0/8" is the subnet`) {
		t.Errorf("beyond its mask: %v", err)
	}
}

func TestPeerPolicy(t *testing.T) {
	c := Default()
	pfx := func(s string) (p Prefix) {
		if err := p.UnmarshalText([]byte(s)); err != nil {
			t.Fatal(err)
		}
		return p
	}
	c.Peers = []PeerRule{
		{Address: pfx("10.0.0.0/24")},
		{Address: pfx("10.0.0.128/25"), Kernel: true},
		{Address: pfx("10.0.0.200"), Deny: true},
		{Address: pfx("fd00::/64"), Kernel: true},
		{Address: pfx("::ffff:10.0.0.64/122"), Deny: true},
	}
	for addr, want := range map[string][2]bool{
		"127.0.0.5": {true, true}, "::1": {true, true}, "10.0.0.5": {true, false}, "::ffff:10.0.0.5": {true, false},
		"10.0.0.70": {false, false}, "::ffff:10.0.0.127": {false, false}, "10.0.0.129": {true, true}, "10.0.0.200": {false, false}, "10.0.1.1": {false, false}, "fd00::9": {true, true},
	} {
		allowed, kernel := c.PeerPolicy(netip.MustParseAddr(addr))
		if allowed != want[0] || kernel != want[1] {
			t.Errorf("%s: allowed %v kernel %v, want %v", addr, allowed, kernel, want)
		}
	}
	c.Peers = append(c.Peers, PeerRule{Address: pfx("127.0.0.0/8"), UIDs: []uint32{1000}},
		PeerRule{Address: pfx("127.0.0.9"), Deny: true, UIDs: []uint32{1000}}, PeerRule{Address: pfx("127.0.0.10")})
	for _, tc := range []struct {
		addr string
		uid  uint32
		ok   bool
	}{
		{"127.0.0.5", 0, true}, {"127.0.0.5", 990, true}, {"127.0.0.5", 1000, true}, {"127.0.0.5", 1001, false},
		{"::ffff:127.0.0.5", 1000, true}, {"::1", 1000, false}, {"::1", 990, true},
		{"127.0.0.9", 1000, false}, {"127.0.0.10", 1000, false}, // the longest prefix decides
		{"10.0.0.5", 1000, false}, {"10.0.0.5", 0, true}, // an allowed network, from here
	} {
		if err := c.MayBePeer(netip.MustParseAddr(tc.addr), Identity{UID: tc.uid}, 990); (err == nil) != tc.ok {
			t.Errorf("user %d at %s: %v", tc.uid, tc.addr, err)
		}
	}
	for _, uid := range []uint32{0, 990, 1000} { // each of them may, unless it stands for strangers
		if err := c.MayBePeer(netip.MustParseAddr("127.0.0.5"), Identity{UID: uid, ForeignUser: true}, 990); err == nil {
			t.Errorf("a stranger with the number %d may", uid)
		}
		if c.API.AdminUIDs = []uint32{1000}; c.IsAdmin(Identity{UID: uid, ForeignUser: true}, 990) || !c.IsAdmin(Identity{UID: uid, ForeignGroup: true}, 990) {
			t.Errorf("a stranger with the number %d is an administrator, or none is who has it", uid)
		}
	}
	if c.Lonely() {
		t.Error("loopback only is not lonely")
	}
	c.RDS.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.1")}
	if c.Lonely() {
		t.Error("lonely although peers are allowed")
	}
	c.Peers = nil
	if !c.Lonely() {
		t.Error("not lonely without any peer allowed")
	}
}

func TestTextForms(t *testing.T) {
	for text, want := range map[string]Bytes{"0": 0, "1": 1, "64KiB": 64 << 10, "1 MiB": 1 << 20, "5B": 5, "2TiB": 2 << 40} {
		var b Bytes
		if err := b.UnmarshalText([]byte(text)); err != nil || b != want {
			t.Errorf("%q: %v %v, want %d", text, b, err, want)
		}
		var again Bytes
		if err := again.UnmarshalText([]byte(b.String())); err != nil || again != b {
			t.Errorf("%q does not come back: %v %v", text, again, err)
		}
	}
	var b Bytes
	for _, text := range []string{"", "KiB", "1K", "-1", "99999999999TiB", "1.5MiB"} {
		if b.UnmarshalText([]byte(text)) == nil {
			t.Errorf("%q accepted as a size", text)
		}
	}
	var d Duration
	if d.UnmarshalText([]byte("1m30s")) != nil || d.Duration != 90*time.Second {
		t.Errorf("duration %v", d)
	}
}

func FuzzConfig(f *testing.F) {
	f.Add("version = 1\n")
	f.Add("version = 1\n[rds]\nport = 1\n[[ports]]\nuid=1\nrange=\"5-9\"\n[[peers]]\naddress=\"::/0\"\n")
	f.Add("version = 1\npeers = [{address=\"10.0.0.1\"},[{}]]\nrds = {port = 9, addresses = [\"::1\"]}")
	f.Add("[[a]]\n[a.b]\nversion=1")
	f.Fuzz(func(t *testing.T, text string) {
		c := Default()
		c.origins = map[string]Origin{}
		if errs, _ := c.decode("fuzz.toml", []byte(text)); errs != nil {
			err := errors.Join(errs...)
			if _, ok := errors.AsType[*Error](err); !ok {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		if c.Validate() != nil {
			return
		}
		// What is valid can be shown and read back.
		var b bytes.Buffer
		if err := c.Dump(&b); err != nil {
			t.Fatal(err)
		}
		again := Default()
		again.origins = map[string]Origin{}
		if errs, _ := again.decode("dump.toml", b.Bytes()); errs != nil {
			err := errors.Join(errs...)
			t.Fatalf("%v\n%s", err, b.String())
		}
	})
}

// TestAllMistakesAtOnce: whatever is wrong in the file, the variables and the flags is
// named in one go, each with its place.
func TestAllMistakesAtOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rdsd.toml")
	text := `version = 1
[rds]
port = "many"
lanes = 9
prot = 5
reconnect_min = 7
[limits]
memory_bytes = "much"
max_peers = 0
[log]
format = "xml"
level = true
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := Flags()
	for _, f := range flags {
		if f.Name() == "drain-timeout" {
			f.Set("soon")
		}
	}
	_, err := Load(LoadOptions{File: file, Env: []string{"RDSD_LIMITS_MAX_SOCKETS=none"}, Flags: flags})
	if err == nil {
		t.Fatal("it is taken")
	}
	var lines []string
	for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
		if _, ok := errors.AsType[*Error](e); !ok {
			t.Errorf("%T: %v", e, e)
		}
		lines = append(lines, strings.TrimPrefix(e.Error(), file))
	}
	for _, want := range []string{":3: rds.port: ", ":4: rds.lanes: 9 is out of range", ":5: rds.prot: unknown key", ":6: rds.reconnect_min: ", ":8: limits.memory_bytes: ", ":9: limits.max_peers: ",
		":11: log.format: ", ":12: log.level: ", "RDSD_LIMITS_MAX_SOCKETS: limits.max_sockets: ", "--drain-timeout: api.drain_timeout: "} {
		if n := len(slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return !strings.HasPrefix(l, want) })); n != 1 {
			t.Errorf("%q is said %d times", want, n)
		}
	}
	if len(lines) != 10 {
		t.Errorf("%d mistakes: %q", len(lines), lines)
	}
}
