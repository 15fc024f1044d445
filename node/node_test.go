package node

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/shm"
)

func TestLifecycle(t *testing.T) {
	cfg := testConfig(t)
	started, start := make(chan struct{}), make(chan struct{})
	entered, leave := make(chan struct{}), make(chan struct{})
	core := &fakeCore{starting: func() { close(started); <-start }, draining: func(context.Context) { close(entered); <-leave }}
	n, logs := newFakeNode(t, cfg, core)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	<-started

	hc := healthpb.NewHealthClient(dial(t, cfg))
	serving := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for _, s := range []string{"", rdsdv1.Datagrams_ServiceDesc.ServiceName, rdsdv1.Admin_ServiceDesc.ServiceName, rdsdv1.VolumeService_ServiceDesc.ServiceName} {
			r, err := hc.Check(testContext(t), &healthpb.HealthCheckRequest{Service: s})
			if err != nil || r.Status != want {
				t.Errorf("health of %q: %v %v, want %v", s, r, err, want)
			}
		}
	}
	get := func(path string) (int, string) {
		t.Helper()
		client := http.Client{Timeout: 30 * time.Second}
		r, err := client.Get("http://" + n.HTTPAddr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		return r.StatusCode, string(b)
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 503, "/metrics": 503, "/": 503} {
		if code, body := get(path); code != want || code == 503 && body != "starting\n" {
			t.Errorf("%s while starting: %d %q", path, code, body)
		}
	}
	close(start)
	<-n.Ready()
	serving(healthpb.HealthCheckResponse_SERVING)
	if code, body := get("/readyz"); code != 200 || body != "serving\n" {
		t.Errorf("/readyz: %d %q", code, body)
	}
	if code, body := get("/"); code != 200 || !strings.Contains(body, "/assets/app.js") || strings.Contains(body, "pprof") {
		t.Errorf("/: %d %q", code, body)
	}
	if code, _ := get("/debug/pprof/"); code != 404 {
		t.Errorf("pprof is on without being asked for: %d", code)
	}
	cancel()
	<-entered
	serving(healthpb.HealthCheckResponse_NOT_SERVING)
	if code, body := get("/readyz"); code != 503 || body != "draining\n" {
		t.Errorf("/readyz while draining: %d %q", code, body)
	}
	if code, _ := get("/healthz"); code != 200 {
		t.Errorf("/healthz while draining: %d", code)
	}
	close(leave)
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	http.DefaultClient.CloseIdleConnections()
	if want := []string{"start", "drain", "close"}; !slices.Equal(core.calls, want) {
		t.Errorf("core saw %v, want %v", core.calls, want)
	}
	if _, err := os.Lstat(cfg.API.Socket); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
	if err := n.Run(t.Context()); err == nil {
		t.Error("Run twice")
	}
	for _, line := range []string{"msg=serving", "msg=draining", "msg=stopped"} {
		if !strings.Contains(logs.String(), line) {
			t.Errorf("log lacks %q:\n%s", line, logs.String())
		}
	}
}

func TestDrainDeadline(t *testing.T) {
	cfg := testConfig(t)
	cfg.API.DrainTimeout = config.Duration{Duration: 50 * time.Millisecond}
	core := &fakeCore{draining: func(ctx context.Context) { <-ctx.Done() }}
	n, _ := newFakeNode(t, cfg, core)
	stop := startNode(t, n)
	begun := time.Now()
	if err := stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("drained for %v with a timeout of 50ms", took)
	}
}

func TestRunFails(t *testing.T) {
	t.Run("core", func(t *testing.T) {
		cfg := testConfig(t)
		boom := errors.New("port taken")
		n, _ := newFakeNode(t, cfg, &fakeCore{startErr: boom})
		if err := n.Run(t.Context()); !errors.Is(err, boom) {
			t.Errorf("Run: %v", err)
		}
		select {
		case <-n.Ready():
		default:
			t.Error("Ready still open after Run failed")
		}
		nothingLeft(t, cfg)
		if c, err := net.Dial("tcp", n.HTTPAddr().String()); err == nil {
			c.Close()
			t.Error("the page is still served")
		}
	})
	t.Run("http address in use", func(t *testing.T) {
		cfg := testConfig(t)
		n, _ := newFakeNode(t, cfg, &fakeCore{})
		startNode(t, n)
		cfg2 := testConfig(t)
		cfg2.HTTP.Listen = n.HTTPAddr().String()
		n2, _ := newFakeNode(t, cfg2, &fakeCore{})
		if err := n2.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "http.listen "+cfg2.HTTP.Listen) {
			t.Errorf("Run: %v", err)
		}
		nothingLeft(t, cfg2)
	})
	t.Run("remote address in use", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		cfg := testConfig(t)
		cfg.API.RemoteListen, cfg.API.Insecure = l.Addr().String(), true
		n, _ := newFakeNode(t, cfg, &fakeCore{})
		if err := n.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "api.remote_listen") {
			t.Errorf("Run: %v", err)
		}
		nothingLeft(t, cfg)
	})
	t.Run("invalid configuration", func(t *testing.T) {
		cfg := testConfig(t)
		cfg.RDS.Lanes = 99
		if _, err := New(cfg, nil); err == nil || !strings.Contains(err.Error(), "rds.lanes") {
			t.Errorf("New: %v", err)
		}
	})
	t.Run("descriptors", func(t *testing.T) {
		cfg := testConfig(t)
		cfg.Limits.MaxDescriptors = 1 << 30
		n, _ := newFakeNode(t, cfg, &fakeCore{})
		if err := n.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "limits.max_descriptors") {
			t.Errorf("Run: %v", err)
		}
	})
}

// nothingLeft checks that a node that did not start has closed the sockets of its clients.
func nothingLeft(t *testing.T, cfg *config.Config) {
	t.Helper()
	for _, path := range []string{cfg.API.Socket, cfg.API.Socket + shm.SocketSuffix} {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
}

func TestSeveralNodesInOneProcess(t *testing.T) {
	var stops []func() error
	for range 3 {
		n, _ := newFakeNode(t, testConfig(t), &fakeCore{})
		stops = append(stops, startNode(t, n))
	}
	for _, stop := range stops {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}

func TestRemoteListener(t *testing.T) {
	cfg := testConfig(t)
	cfg.API.RemoteListen = "127.0.0.1:0"
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "TLS") {
		t.Errorf("a remote listener without insecure: %v", err)
	}
	cfg.API.Insecure = true
	n, logs := newFakeNode(t, cfg, &fakeCore{})
	startNode(t, n)
	if !strings.Contains(logs.String(), "neither encrypted nor identified") {
		t.Errorf("no warning:\n%s", logs.String())
	}
}

// TestNoSuchProcessor: a node that cannot have its processors does not start,
// says why, and leaves nothing behind.
func TestNoSuchProcessor(t *testing.T) {
	cfg := testConfig(t)
	cfg.Reactor.CPUs = []int{1000}
	n, err := New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Run(testContext(t)); err == nil || !strings.Contains(err.Error(), "CPU 1000") {
		t.Errorf("Run: %v", err)
	}
}
