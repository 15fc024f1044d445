package cli

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDoctorLooksAtTheSocket: the daemon that is looked at is that of --socket, else of RDSD_SOCKET, else of the configuration,
// and so is the directory of state beside its socket.
func TestDoctorLooksAtTheSocket(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"file", "variable", "flag"} {
		l, err := net.Listen("unix", filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	conf := filepath.Join(dir, "rdsd.toml")
	if err := os.WriteFile(conf, []byte("version = 1\n[api]\nsocket = \""+filepath.Join(dir, "file")+"\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ variable, flag, want string }{
		{"", "", "file"},
		{"", "remote.example:1", "file"},
		{"unix://" + filepath.Join(dir, "variable"), "", "variable"},
		{filepath.Join(dir, "variable"), "unix:" + filepath.Join(dir, "flag"), "flag"},
		{"remote.example:1", "", "file"},
	} {
		t.Setenv("RDSD_SOCKET", c.variable)
		if c.variable == "" {
			os.Unsetenv("RDSD_SOCKET")
		}
		argv := []string{"rdsd", "doctor", "--json", "--config", conf, "net", "limits"}
		if c.flag != "" {
			argv = append(argv, "--socket", c.flag)
		}
		var out, errw bytes.Buffer
		Main(argv, strings.NewReader(""), &out, &errw) // what this machine lacks is nothing to it
		var found []struct{ What, Text string }
		if err := json.Unmarshal(out.Bytes(), &found); err != nil {
			t.Fatalf("%+v: %v: %s%s", c, err, &out, &errw)
		}
		socket := filepath.Join(dir, c.want)
		for what, want := range map[string]string{"daemon": "one answers at " + socket, "state": socket + ".volumes has"} {
			got := ""
			for _, f := range found {
				if f.What == what {
					got += f.Text
				}
			}
			if !strings.HasPrefix(got, want) {
				t.Errorf("%+v: %s: %q, want %q", c, what, got, want)
			}
		}
	}
}
