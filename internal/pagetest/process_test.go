package pagetest

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/freeport"
	"github.com/rdsd/rdsd/node"
	"github.com/rdsd/rdsd/node/config"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// asDaemon has the test's program be a daemon, whose configuration is in its environment.
const asDaemon = "PAGETEST_SERVE"

func TestMain(m *testing.M) {
	if os.Getenv(asDaemon) == "" {
		os.Exit(m.Run())
	}
	os.Exit(serve())
}

func serve() int {
	cfg, err := config.Load(config.LoadOptions{Env: os.Environ()})
	if err != nil {
		return 1
	}
	n, err := node.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if n.Run(ctx) != nil {
		return 1
	}
	return 0
}

// process is a daemon that can be killed, and an application of it that comes back.
type process struct {
	t      *testing.T
	env    []string
	page   string
	socket string
	cmd    *exec.Cmd
	client *rdsd.Client
}

func newProcess(t *testing.T, dir string, page uint16) *process {
	t.Helper()
	port, err := freeport.On(addrC)
	if err != nil {
		t.Fatal(err)
	}
	volumes, err := freeport.On(addrC)
	if err != nil {
		t.Fatal(err)
	}
	text := func(port uint16) string { return netip.AddrPortFrom(addrC, port).String() }
	p := &process{t: t, page: text(page), socket: filepath.Join(dir, "c.sock")}
	p.env = append(os.Environ(), asDaemon+"=1", "RDSD_ADDRESS="+addrC.String(), "RDSD_PORT="+netip.AddrPortFrom(addrC, port).String()[len(addrC.String())+1:],
		"RDSD_VOLUMES_PORT="+text(volumes)[len(addrC.String())+1:], "RDSD_SOCKET="+p.socket, "RDSD_HTTP="+p.page, "RDSD_VOLUMES_STATE_DIR="+filepath.Join(dir, "c.state"))
	t.Cleanup(p.kill)
	return p
}

// start begins a life of the daemon, in which the application binds its socket.
func (p *process) start() {
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env, p.cmd.Stderr = p.env, os.Stderr
	if err := p.cmd.Start(); err != nil {
		p.t.Error(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		var err error
		if p.client, err = rdsd.Dial(p.socket); err != nil {
			continue
		}
		if _, err = p.client.Bind(ctx, netip.AddrPortFrom(addrC, 6001), rdsd.WithLabel("comes back")); err == nil {
			return
		}
		p.client.Close()
	}
	p.t.Error("the daemon that was started does not answer")
}

// kill ends it as nothing can be told of: SIGKILL.
func (p *process) kill() {
	if p.cmd == nil || p.cmd.Process == nil {
		return
	}
	_ = p.cmd.Process.Kill() // it has ended
	_ = p.cmd.Wait()         // killed
	p.cmd = nil
	if p.client != nil {
		p.client.Close()
		p.client = nil
	}
}
