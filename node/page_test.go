package node

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestPageOnUnixSocket(t *testing.T) {
	path := filepath.Join(filepath.Dir(testConfig(t).API.Socket), "http")
	cfg := testConfig(t)
	cfg.HTTP.Listen = "unix:" + path
	n, _ := newFakeNode(t, cfg, &fakeCore{})
	startNode(t, n)
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode().Perm() != n.deps.Config.API.SocketMode.Perm {
		t.Errorf("mode %v", st.Mode())
	}
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
	r, err := c.Get("http://rdsd/metrics")
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(r.Body)
	r.Body.Close()
	if !strings.Contains(string(b), "rdsd_build_info") {
		t.Errorf("%.200s", b)
	}
}

// TestRefusedPageSaysWhy: a connection that is taken with the last descriptor.
func TestRefusedPageSaysWhy(t *testing.T) {
	a, b := net.Pipe()
	go func() { refusePage(a, syscall.EMFILE); a.Close() }()
	r, err := http.ReadResponse(bufio.NewReader(b), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(r.Body)
	if r.StatusCode != 503 || !strings.Contains(string(body), "limits.max_descriptors") {
		t.Errorf("%d %s", r.StatusCode, body)
	}
}
