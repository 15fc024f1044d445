package config

import (
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFileThatIsNotThere: the name of the file is told once.
func TestFileThatIsNotThere(t *testing.T) {
	if err := unwrapPath(&fs.PathError{Op: "open", Path: "/etc/rdsd.toml", Err: fs.ErrPermission}); err != fs.ErrPermission {
		t.Errorf("what is wrong with a file: %v", err)
	}
	name := filepath.Join(t.TempDir(), "none.toml")
	if _, err := Load(LoadOptions{File: name}); err == nil || strings.Count(err.Error(), name) != 1 {
		t.Errorf("%v; want %s in it once", err, name)
	}
}

// TestNamesOfThePage: a name has 1 to 253 characters, and there are at most 64.
func TestNamesOfThePage(t *testing.T) {
	long := strings.Repeat("a", 253)
	for _, c := range []struct {
		names []string
		good  bool
	}{
		{[]string{long}, true},
		{[]string{long + "a"}, false},
		{[]string{"n"}, true},
		{[]string{""}, false},
		{[]string{"Capital"}, false},
		{strings.Split(strings.Repeat("n ", 63)+"n", " "), true},
		{strings.Split(strings.Repeat("n ", 64)+"n", " "), false},
	} {
		conf := Default()
		conf.HTTP.Names = c.names
		v := &validator{c: conf}
		if v.page(); (len(v.errs) == 0) != c.good {
			t.Errorf("%d names, the first of %d characters: %v", len(c.names), len(c.names[0]), v.errs)
		}
	}
}

// TestListenersMeet: two listeners with one port of one address are refused when the configuration is read.
func TestListenersMeet(t *testing.T) {
	for _, c := range []struct{ http, remote, refuses string }{
		{"10.0.0.1:16385", "", "http.listen: 10.0.0.1:16385 has the port of rds.port"},
		{":16385", "", "http.listen: :16385 has the port of rds.port"},
		{"[::]:16388", "", "http.listen: [::]:16388 has the port of volumes.port"},
		{"[::ffff:10.0.0.1]:16388", "", "volumes.port"},
		{"", "0.0.0.0:16385", "api.remote_listen: 0.0.0.0:16385 has the port of rds.port"},
		{"10.0.0.1:1", "10.0.0.1:1", "http.listen: 10.0.0.1:1 is api.remote_listen as well"},
		{":1", "10.0.0.1:1", "http.listen: :1 is api.remote_listen as well"},
		{"10.0.0.1:1", "10.0.0.2:1", ""},
		{"127.0.0.1:16385", "10.0.0.2:16388", ""},
		{":0", "10.0.0.1:0", ""},
		{"localhost:16385", "", ""},
		{"unix:/run/x", "", ""},
		{"", "", ""},
	} {
		conf := Default()
		conf.RDS.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.1")}
		conf.API.Insecure, conf.HTTP.Listen, conf.API.RemoteListen = true, c.http, c.remote
		err := conf.Validate()
		if (err == nil) != (c.refuses == "") || err != nil && !strings.Contains(err.Error(), c.refuses) {
			t.Errorf("%q and %q: %v, want %q", c.http, c.remote, err, c.refuses)
		}
	}
	conf := Default()
	conf.RDS.Addresses, conf.HTTP.Listen = []netip.Addr{netip.MustParseAddr("10.0.0.1")}, "10.0.0.1:16388"
	if conf.Volumes.Listen = "never"; conf.Validate() != nil {
		t.Errorf("nobody listens on volumes.port: %v", conf.Validate())
	}
}

// TestDefaultsThatDoNotFit: where a default does not fit what was set, the error is at what was set.
func TestDefaultsThatDoNotFit(t *testing.T) {
	for text, want := range map[string]string{
		"[limits]\nmax_clients = 500":                        "limits.max_clients_per_uid: its default: 1024 is out of range",
		"[limits]\nmax_sockets = 500":                        "limits.max_sockets_per_uid: its default: 4096 is out of range",
		"[limits]\nmemory_bytes = \"32MiB\"":                 "rds.send_buffer_max_bytes: its default: 64MiB is more than limits.memory_bytes, 32MiB",
		"[rds]\nsend_buffer_max_bytes = \"64KiB\"":           "rds.send_buffer_bytes: its default: 1MiB is out of range",
		"[rds]\nrecv_buffer_max_bytes = \"64KiB\"":           "rds.recv_buffer_bytes: its default: 1MiB is out of range",
		"[rds]\nreconnect_max = \"50ms\"":                    "rds.reconnect_min: its default: 100ms is out of range",
		"[rds]\nheartbeat_interval = \"30s\"":                "rds.heartbeat_timeout: its default: 20s is not longer",
		"[rds]\nport = 16388":                                "volumes.port: its default: 16388 is rds.port as well",
		"[rds]\nport = 16386":                                "http.listen: its default: 127.0.0.1:16386 has the port of rds.port",
		"[volumes]\nport = 16386":                            "http.listen: its default: 127.0.0.1:16386 has the port of volumes.port",
		"[volumes]\nreconnect_max = \"50ms\"":                "volumes.reconnect_min: its default: 100ms",
		"[volumes]\nmax_io_bytes = \"32MiB\"":                "volumes.queue_depth: its default: 512 requests",
		"[api]\nsocket = \"x\"":                              "volumes.state_dir: its default: \"x.volumes\"",
		"[volumes]\nmax_exports = 1\n" + exportsOf("a", "b"): "volumes.max_exports: 1, and there are 2",
	} {
		file := filepath.Join(t.TempDir(), "t.toml")
		if err := os.WriteFile(file, []byte("version = 1\n"+text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(LoadOptions{File: file}); err == nil || !strings.Contains(err.Error(), ":3: "+want) {
			t.Errorf("%s: %v; want %s at line 3", text, err, want)
		}
	}
	if _, err := Load(LoadOptions{Env: []string{"RDSD_LIMITS_MAX_CLIENTS=5"}}); err == nil || !strings.HasPrefix(err.Error(), "RDSD_LIMITS_MAX_CLIENTS: ") {
		t.Errorf("%v", err)
	}
}

func exportsOf(names ...string) (text string) {
	for _, name := range names {
		text += "[[volumes.exports]]\nname = \"" + name + "\"\npath = \"/" + name + "\"\n"
	}
	return text
}

// TestUnreadIsHeldAgainstNothing: a value that cannot be read is one mistake. What stands in for it, the default or
// nothing, is not held against other values, which may be right.
func TestUnreadIsHeldAgainstNothing(t *testing.T) {
	for _, c := range []struct {
		text, env, want string
	}{
		{"[rds]\nreconnect_min = '10s'\nreconnect_max = '60'", "", ":4: rds.reconnect_max: "},
		{"[rds]\nsend_buffer_bytes = '128MiB'\nsend_buffer_max_bytes = '256MB'", "", ":4: rds.send_buffer_max_bytes: "},
		{"[limits]\nmemory_bytes = '20G'\n[rds]\nsend_buffer_max_bytes = '2GiB'", "", ":3: limits.memory_bytes: "},
		{"[rds]\nheartbeat_timeout = '1m'\nheartbeat_interval = '10'", "", ":4: rds.heartbeat_interval: "},
		{"[limits]\nmax_clients = 'x'\nmax_clients_per_uid = 60000", "", ":3: limits.max_clients: "},
		{"[limits]\nmax_clients_per_uid = 60000", "RDSD_LIMITS_MAX_CLIENTS=x", "RDSD_LIMITS_MAX_CLIENTS: "},
		{"[rds]\nport = 'x'\n[volumes]\nport = 16385", "", ":3: rds.port: "},
		{"[rds]\naddresses = ['10.0.0.300']\n[http]\nlisten = '127.0.0.1:16385'", "", ":3: rds.addresses: "},
		{"[rds]\naddresses = [10]\n[http]\nlisten = '127.0.0.1:16385'", "", ":3: rds.addresses: "},
		{"[api]\nremote_listen = '10.0.0.1:5'\ninsecure = 'yes'", "", ":4: api.insecure: "},
		{"[reactor]\nthreads = 'two'\ncpus = [1, 2]", "", ":3: reactor.threads: "},
		{"[[peers]]\naddress = '10.0.0.300'\n[[peers]]\naddress = '10.0.0.3'", "", ":3: peers.address: "},
		{"[[ports]]\nuid = 'joe'\nrange = '5-7'", "", ":3: ports.uid: "},
		{"[[ports]]\nuid = 1\nrange = '7-5'", "", ":4: ports.range: "},
		{"[[volumes.exports]]\nname = 'a'\nkind = 'memory'\nsize = '1GB'", "", ":5: volumes.exports.size: "},
		{"[volumes]\nreconnect_min = '1m'\nreconnect_max = '100'", "", ":4: volumes.reconnect_max: "},
		{"[volumes]\nqueue_depth = 'many'\nmax_io_bytes = '32MiB'", "", ":3: volumes.queue_depth: "},
		// Behind a value that has more lines than one nothing is read.
		{"[rds]\naddresses = ['10.0.0.1',\n 'x']\nreconnect_min = '10s'\nreconnect_max = '20s'\n[http]\nlisten = '127.0.0.1:16385'", "", ":4: rds.addresses: "},
	} {
		_, err := Load(LoadOptions{File: "f", Text: []byte("version = 1\n" + c.text), Env: []string{c.env}})
		if err == nil {
			t.Errorf("%q is taken", c.text)
			continue
		}
		got := err.Error()
		if strings.Contains(got, "\n") || !strings.HasPrefix(strings.TrimPrefix(got, "f"), c.want) {
			t.Errorf("%q: %s\nwant one mistake, %s", c.text, got, c.want)
		}
	}
	// A right value over a wrong one counts.
	_, err := Load(LoadOptions{File: "f", Text: []byte("version = 1\n[rds]\nreconnect_min = '10s'\nreconnect_max = '60'"), Env: []string{"RDSD_RDS_RECONNECT_MAX=5s"}})
	if err == nil || !strings.Contains(err.Error(), "f:3: rds.reconnect_min: ") {
		t.Errorf("with a variable: %v", err)
	}
}
