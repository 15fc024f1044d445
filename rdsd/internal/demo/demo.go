package demo

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/rdsd/rdsd/internal/freeport"
	"github.com/rdsd/rdsd/node"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdsd/internal/dial"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// Config is one demonstration.
type Config struct {
	Length time.Duration // 0: until the context ends
	Out    io.Writer
	TTY    bool // redraw the table instead of repeating it
	Width  int  // of the terminal; 0: not known
	JSON   bool // one JSON object a line: what happens, the flows, the summary
}

// The two nodes' addresses; all of 127.0.0.0/8 is loopback on Linux.
var (
	addrA = netip.MustParseAddr("127.0.0.11")
	addrB = netip.MustParseAddr("127.0.0.12")
)

// site is one node with the client its applications use.
type site struct {
	name    string
	addr    netip.Addr
	volumes uint16 // port its volumes are reached at
	page    string // where its page is
	client  *rdsd.Client
	stop    func() error
}

// startLimit bounds how long it takes until the applications are at work.
const startLimit = 20 * time.Second

// Run shows the demonstration and returns the account of every datagram. The
// end of ctx is a normal end, also while the nodes are being started: a show that
// has no time is a short one.
func Run(ctx context.Context, c Config) (Summary, error) {
	dir, err := os.MkdirTemp("", "rdsd-demo-")
	if err != nil {
		return Summary{}, err
	}
	defer os.RemoveAll(dir)
	t := newTeller(c)
	defer t.close()
	starting, cancel := context.WithTimeout(context.WithoutCancel(ctx), startLimit)
	defer cancel()
	a, b, l, err := startBoth(starting, dir, t)
	if err != nil {
		return Summary{}, err
	}
	defer l.close()
	defer a.close()
	defer b.close()
	s, err := newShow(starting, t, a, b, l)
	if err != nil {
		return Summary{}, err
	}
	if s.disk, err = startDisk(starting, dir, t, a, b, l); err != nil {
		s.end()
		return Summary{}, err
	}
	t.table(s)
	if c.Length > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Length)
		defer cancel()
	}
	s.play(ctx, c.Length)
	sum := s.end()
	t.finish(sum)
	return sum, nil
}

// startBoth starts two nodes with a link between them.
func startBoth(ctx context.Context, dir string, t *teller) (a, b *site, l *link, err error) {
	ends := [2]end{{addr: addrA}, {addr: addrB}}
	for i := range ends {
		if ends[i].port, err = freeport.On(addrA, addrB); err != nil {
			return nil, nil, nil, err
		}
	}
	// One port on both, so that each page knows where the other one is.
	page, err := freeport.On(addrA, addrB)
	if err != nil {
		return nil, nil, nil, err
	}
	if l, err = newLink(ctx, ends[0], ends[1]); err != nil {
		return nil, nil, nil, err
	}
	if a, err = start(ctx, "A", ends[0], page, dir); err != nil {
		l.close()
		return nil, nil, nil, err
	}
	if b, err = start(ctx, "B", ends[1], page, dir); err != nil {
		a.close()
		l.close()
		return nil, nil, nil, err
	}
	t.say("node A serves %s, node B %s; they speak RDS over TCP through a link that this program can cut", addrA, addrB)
	t.say("watch them in a browser: node A %s, node B %s", a.page, b.page)
	return a, b, l, nil
}

// startDisk maps a volume of b on a, over the link and around it.
func startDisk(ctx context.Context, dir string, t *teller, a, b *site, l *link) (*disk, error) {
	port, err := freeport.On(b.addr)
	if err != nil {
		return nil, err
	}
	relay, direct := netip.AddrPortFrom(b.addr, port), netip.AddrPortFrom(b.addr, b.volumes)
	if err := l.carry(ctx, relay, a.addr, direct); err != nil {
		return nil, err
	}
	return newDisk(ctx, dir, t, a, b, relay, direct)
}

// start runs one node and waits until it serves.
func start(ctx context.Context, name string, at end, page uint16, dir string) (*site, error) {
	cfg := config.Default()
	cfg.RDS.Addresses = []netip.Addr{at.addr}
	cfg.RDS.Port = at.port
	cfg.API.Socket = filepath.Join(dir, name+".sock")
	cfg.API.DrainTimeout.Duration = time.Second
	cfg.HTTP.Listen = netip.AddrPortFrom(at.addr, page).String()
	cfg.HTTP.PeerPage = fmt.Sprintf("http://{address}:%d/", page)
	volumes, err := freeport.On(at.addr)
	if err != nil {
		return nil, err
	}
	cfg.Volumes.Port = volumes
	n, err := node.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- n.Run(run) }() // ended by stop
	s := &site{name: name, addr: at.addr, volumes: volumes, page: "http://" + cfg.HTTP.Listen + "/"}
	s.stop = sync.OnceValue(func() error { cancel(); return <-done })
	if s.client, err = rdsd.Dial(cfg.API.Socket); err != nil {
		s.stop()
		return nil, err
	}
	<-n.Ready() // also when it could not start
	ask, stopAsking := context.WithTimeout(ctx, 5*time.Second)
	defer stopAsking()
	if _, err := s.client.Admin().Status(ask); err != nil {
		s.client.Close()
		if why := s.stop(); why != nil {
			err = why
		}
		return nil, fmt.Errorf("node %s (%s): %w", name, at.addr, dial.Cause(err))
	}
	return s, nil
}

func (s *site) close() {
	if s.client != nil {
		s.client.Close()
	}
	s.stop()
}
