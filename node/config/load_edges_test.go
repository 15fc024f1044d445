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
