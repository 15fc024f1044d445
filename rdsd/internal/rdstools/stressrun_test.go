package rdstools

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rdsd/rdsd/interop"
	"github.com/rdsd/rdsd/node"
	"github.com/rdsd/rdsd/node/config"
)

func TestMain(m *testing.M) {
	interop.HelperMain()
	goleak.VerifyTestMain(m)
}

// twoNodes starts two daemons that reach each other and returns their sockets.
func twoNodes(t *testing.T, a, b string) (socketA, socketB string) {
	t.Helper()
	port := freePort(t, a)
	var sockets [2]string
	for i, ad := range []string{a, b} {
		cfg := config.Default()
		cfg.RDS.Addresses = []netip.Addr{addr(ad)}
		cfg.RDS.Port = uint16(port)
		cfg.API.Socket = filepath.Join(t.TempDir(), "s")
		cfg.API.DrainTimeout.Duration = 0
		cfg.HTTP.Listen = ""
		n, err := node.New(cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- n.Run(ctx) }()
		t.Cleanup(func() { cancel(); <-done })
		<-n.Ready()
		sockets[i] = cfg.API.Socket
	}
	return sockets[0], sockets[1]
}

func freePort(t *testing.T, a string) int {
	t.Helper()
	l, err := net.Listen("tcp", a+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// side runs one side with a short second.
func side(ctx context.Context, t *testing.T, args ...string) (string, error) {
	var out bytes.Buffer
	s := &stress{out: &lockedWriter{w: &out}, err: &out, second: 100 * time.Millisecond}
	err := s.parse(ctx, args)
	if err == nil {
		err = s.run(ctx)
	}
	return out.String(), err
}

type lockedWriter struct {
	mu sync.Mutex
	w  *bytes.Buffer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// TestBothSides runs two instances against each other through two daemons.
func TestBothSides(t *testing.T) {
	const a, b = "127.0.22.1", "127.0.22.2"
	socketA, socketB := twoNodes(t, a, b)
	for name, c := range map[string]struct {
		port            string
		args            []string
		active, passive string // of the average
	}{
		"both ways":  {"4000", []string{"-t", "2", "-d", "4", "-v", "-q", "5000", "-a", "100"}, `^   2 +[1-9]\d* +[1-9]\d* `, `^   2 +[1-9]\d* +[1-9]\d* `},
		"one way":    {"4100", []string{"-o", "-z"}, `^   1 +[1-9]\d* +0 `, `^   1 +0 +[1-9]\d* `},
		"long block": {"4200", []string{"-Q", "3", "--async", "-c"}, `^   1 +[1-9]\d* `, `^   1 +[1-9]\d* `},
		"a MiB":      {"4300", []string{"-q", "1M", "-v"}, `^   1 +[1-9]\d* `, `^   1 +[1-9]\d* `},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			var out string
			var err error
			var wg sync.WaitGroup
			wg.Go(func() { out, err = side(ctx, t, "--socket", socketB, "-r", b, "-p", c.port) })
			args := append([]string{"--socket", socketA, "-r", a, "-s", b, "-p", c.port, "-T", "3", "--connect-retries", "50"}, c.args...)
			aout, aerr := side(ctx, t, args...)
			wg.Wait()
			for _, s := range []struct {
				who, out, want string
				err            error
			}{{"active", aout, c.active, aerr}, {"passive", out, c.passive, err}} {
				lines := strings.Split(strings.TrimSpace(s.out), "\n")
				last := lines[len(lines)-1]
				if s.err != nil || !strings.HasSuffix(last, "(average)") || !regexp.MustCompile(s.want).MatchString(last) {
					t.Errorf("%s side: %v, its output:\n%s", s.who, s.err, s.out)
				}
			}
		})
	}
}

// TestPassiveRefuses: nonsense on the control connection ends the run, and
// allocates nothing by it.
func TestPassiveRefuses(t *testing.T) {
	socket, _ := twoNodes(t, "127.0.22.3", "127.0.22.4")
	huge := sampleOptions()
	huge.tasks, huge.depth = 60000, 60000
	rdma := sampleOptions()
	rdma.rdmaSize = 4096
	for name, send := range map[string][]byte{
		"huge":    huge.append(nil),
		"RDMA":    rdma.append(nil),
		"rubbish": bytes.Repeat([]byte{0xa5}, 59),
		"short":   []byte("GET / HTTP/1.0\r\n\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			ended := make(chan error, 1)
			go func() { // ends when the passive side does, at the latest with ctx
				_, err := side(ctx, t, "--socket", socket, "-r", "127.0.22.3", "-p", "4500")
				ended <- err
			}()
			var c net.Conn
			for c == nil {
				select {
				case err := <-ended:
					t.Fatalf("the passive side ended before anybody was there: %v", err)
				case <-time.After(5 * time.Millisecond):
					c, _ = net.Dial("tcp", "127.0.22.3:4500")
				}
			}
			c.Write(send)
			c.Close()
			if err := <-ended; err == nil || ctx.Err() != nil {
				t.Errorf("the passive side took it: %v", err)
			}
		})
	}
}

// TestInterrupted: a passive side that waits ends with its context.
func TestInterrupted(t *testing.T) {
	socket, _ := twoNodes(t, "127.0.22.5", "127.0.22.6")
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := side(ctx, t, "--socket", socket, "-r", "127.0.22.5", "-p", "4600"); err == nil {
		t.Error("no error")
	}
}
