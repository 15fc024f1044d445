package volumetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

// daemon is a process of rdsd that can be killed and started again.
type daemon struct {
	t       testing.TB
	name    string
	socket  string
	config  string
	obeying bool     // the test binary
	env     []string // of an obeying one
	hostile bool     // its peers may break the protocol
	unshare uintptr  // namespaces of its own

	cmd   *exec.Cmd // nil while it does not run
	ended chan struct{}
	c     *rdsd.Client
	log   *os.File
}

// daemon writes a configuration and starts the process.
func (w *world) daemon(name string, host int, obeying bool, settings string) *daemon {
	w.t.Helper()
	d := w.newDaemon(name, host, obeying, settings)
	d.start()
	d.ready()
	return d
}

// newDaemon does not start it yet.
func (w *world) newDaemon(name string, host int, obeying bool, settings string) *daemon {
	w.t.Helper()
	d := &daemon{t: w.t, name: name, obeying: obeying, socket: filepath.Join(w.dir, name[:1]), config: filepath.Join(w.dir, name+".toml")}
	text := fmt.Sprintf("version = 1\n[rds]\naddresses = [%q]\nport = %d\n[api]\nsocket = %q\n[http]\nlisten = \"\"\n[volumes]\nport = %d\nname = %q\n%s\n",
		w.at(host), w.port, d.socket, w.volumes, name, settings)
	if w.over.hasRDMA() {
		text = strings.Replace(text, "[volumes]\n", fmt.Sprintf("[volumes]\nrdma = \"soft\"\nrdma_port = %d\n", w.rdma), 1)
	}
	if err := os.WriteFile(d.config, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	var err error
	if d.log, err = os.OpenFile(filepath.Join(w.dir, name+".log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		d.kill()
		d.readLog()
		if w.t.Failed() {
			d.showLog()
		}
		d.log.Close()
	})
	return d
}

// start starts the process and does not wait.
func (d *daemon) start() {
	d.t.Helper()
	if d.obeying {
		d.cmd = exec.Command(os.Args[0])
		d.cmd.Env = append(os.Environ(), roleEnv+"=store", configEnv+"="+d.config, orderEnv+"="+d.orders())
		d.cmd.Env = append(d.cmd.Env, d.env...)
	} else {
		d.cmd = exec.Command(rdsdtest.Binary(d.t), "serve", "--config", d.config)
	}
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Unshareflags: d.unshare}
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	cmd, ended := d.cmd, make(chan struct{})
	d.ended = ended
	go func() { // ends with the process
		defer close(ended)
		cmd.Wait()
	}()
}

// ready waits until the daemon serves.
func (d *daemon) ready() {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for {
		st, err := d.client().Admin().Status(ctx)
		if err == nil && st.State == "serving" {
			return
		}
		d.hangUp() // a client that was refused waits before it tries again
		select {
		case <-d.ended:
			d.showLog()
			d.t.Fatalf("the %s ended at once", d.name)
		case <-ctx.Done():
			d.t.Fatalf("the %s does not serve: %v", d.name, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// kill ends the process at once.
func (d *daemon) kill() {
	d.hangUp()
	if d.cmd == nil {
		return
	}
	d.cmd.Process.Kill()
	<-d.ended
	d.cmd = nil
}

func (d *daemon) client() *rdsd.Client {
	if d.c == nil {
		var err error
		if d.c, err = rdsd.Dial(d.socket); err != nil {
			d.t.Fatal(err)
		}
	}
	return d.c
}

func (d *daemon) hangUp() {
	if d.c != nil {
		d.c.Close()
		d.c = nil
	}
}

func (d *daemon) vols() *rdsd.Volumes { return d.client().Volumes() }

// orders is the socket at which an obeying daemon takes orders.
func (d *daemon) orders() string { return d.socket + "o" }

// readLog fails the test for what no daemon should ever say.
func (d *daemon) readLog() {
	b, err := os.ReadFile(d.log.Name())
	if err != nil {
		d.t.Error(err)
	}
	for _, text := range []string{"panic:", "fatal error:", "broke the protocol"} {
		if at := bytes.Index(b, []byte(text)); at >= 0 && !(d.hostile && text == "broke the protocol") {
			d.t.Errorf("the %s says: %s", d.name, b[at:min(at+1000, len(b))])
		}
	}
}

func (d *daemon) showLog() {
	b, err := os.ReadFile(d.log.Name())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		d.t.Log(err)
	}
	most := 12 << 10
	tail := lastLines(b, most)
	// Of what came before, what is not about a hostile peer, which fills logs.
	var others []byte
	for line := range bytes.Lines(b[:len(b)-len(tail)]) {
		if !bytes.Contains(line, []byte("raider")) {
			others = append(others, line...)
		}
	}
	d.t.Logf("log of the %s:\n%s%s", d.name, lastLines(others, most), tail)
}

// lastLines is the end of a log, whole lines.
func lastLines(b []byte, most int) []byte {
	if len(b) > most {
		b = b[len(b)-most:]
		b = b[bytes.IndexByte(b, '\n')+1:]
	}
	return b
}
