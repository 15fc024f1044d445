package volumetest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/node"
	"github.com/rdsd/rdsd/node/config"
)

// The environment of a daemon that is the test binary. None begins with RDSD_,
// which is the configuration's.
const (
	roleEnv   = "VOLUMETEST_ROLE"
	configEnv = "VOLUMETEST_CONFIG"
	orderEnv  = "VOLUMETEST_ORDERS"
	bootEnv   = "VOLUMETEST_BOOT"  // a file in place of the machine's boot id
	cacheEnv  = "VOLUMETEST_CACHE" // not empty: a volatile cache in front of every store
)

// order is what the stores of an obeying daemon are told, a line of JSON.
type order struct {
	Do   string // "rule", "clear", "release", "look", "power cut"
	Rule blk.Rule
	Err  string // Rule's
}

// report is the answer.
type report struct {
	Held     int    // requests that wait for "release"
	Hits     int    // requests that rules have harmed
	Unsynced int    // sectors a power cut would endanger
	Err      string // the order could not be carried out
}

// storeErrors are the errors of rules, which travel by name.
var storeErrors = map[string]error{"": nil, "EIO": blk.ErrMedium, "ENOSPC": blk.ErrNoSpace}

// stores are the layers of an obeying daemon.
type stores struct {
	mu       sync.Mutex
	faults   []*blk.Fault
	volatile []*blk.Volatile
	open     map[string]chan struct{} // by export: closed when its last cache is
	rules    []blk.Rule
	hits     []func() int
}

// storeMain is a daemon whose stores obey; it is the rdsd program in all else.
func storeMain() error {
	if f := os.Getenv(bootEnv); f != "" { // in a mount namespace of its own
		if err := unix.Mount(f, "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("boot id: %w", err)
		}
	}
	cfg, err := config.Load(config.LoadOptions{File: os.Getenv(configEnv), Env: os.Environ()})
	if err != nil {
		return err
	}
	n, err := node.New(cfg, node.NewLogger(os.Stderr, &cfg.Log))
	if err != nil {
		return err
	}
	s := &stores{open: map[string]chan struct{}{}}
	n.LayerStores(s.layer)
	os.Remove(os.Getenv(orderEnv))
	l, err := net.Listen("unix", os.Getenv(orderEnv))
	if err != nil {
		return err
	}
	go s.obey(l) // ends with the process
	node.TuneMemory(cfg)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return n.Run(ctx)
}

func (s *stores) layer(name string, d blk.Device) blk.Device {
	s.mu.Lock()
	defer s.mu.Unlock()
	if os.Getenv(cacheEnv) != "" {
		// A store is closed in the background, and opened again meanwhile. The page
		// cache of a file is one for both; this cache is not.
		if before := s.open[name]; before != nil {
			s.mu.Unlock()
			<-before
			s.mu.Lock()
		}
		v := blk.NewVolatile(d, time.Now().UnixNano())
		s.volatile = append(s.volatile, v)
		gone := make(chan struct{})
		s.open[name] = gone
		d = &cache{v, s, gone}
	}
	f := blk.NewFault(d, 1)
	for _, r := range s.rules {
		s.hits = append(s.hits, f.Add(r))
	}
	s.faults = append(s.faults, f)
	return f
}

// cache is a volatile cache that is written out when the store is closed.
type cache struct {
	*blk.Volatile
	s    *stores
	gone chan struct{}
}

func (c *cache) Close() error {
	defer close(c.gone)
	err := blk.Flush(c.Volatile)
	c.s.mu.Lock()
	c.s.volatile = slices.DeleteFunc(c.s.volatile, func(v *blk.Volatile) bool { return v == c.Volatile })
	c.s.mu.Unlock()
	return errors.Join(err, c.Volatile.Close())
}

func (s *stores) obey(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() { // ends with the connection
			defer c.Close()
			in, out := json.NewDecoder(bufio.NewReader(c)), json.NewEncoder(c)
			for {
				var o order
				if in.Decode(&o) != nil {
					return
				}
				r := s.do(&o)
				if out.Encode(r) != nil {
					return
				}
				if o.Do == "power cut" {
					syscall.Kill(os.Getpid(), syscall.SIGKILL)
				}
			}
		}()
	}
}

func (s *stores) do(o *order) (r report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch o.Do {
	case "rule":
		o.Rule.Err = storeErrors[o.Err]
		s.rules = append(s.rules, o.Rule)
		for _, f := range s.faults {
			s.hits = append(s.hits, f.Add(o.Rule))
		}
	case "clear":
		for _, f := range s.faults {
			f.Clear()
		}
		for _, h := range s.hits { // no more come
			r.Hits += h()
		}
		s.rules, s.hits = nil, nil
	case "release":
		for _, f := range s.faults {
			f.Release()
		}
	case "power cut":
		for _, v := range s.volatile {
			r.Unsynced += v.Unsynced()
			if err := v.PowerCut(); err != nil {
				r.Err = err.Error()
			}
		}
	case "look":
	default:
		r.Err = "there is no order " + o.Do
	}
	for _, f := range s.faults {
		r.Held += f.Held()
	}
	for _, h := range s.hits {
		r.Hits += h()
	}
	for _, v := range s.volatile {
		r.Unsynced += v.Unsynced()
	}
	return r
}

// order gives an order to an obeying daemon.
func (d *daemon) order(o order) report {
	d.t.Helper()
	c, err := net.Dial("unix", d.orders())
	if err != nil {
		d.t.Fatal(err)
	}
	defer c.Close()
	var r report
	if err = json.NewEncoder(c).Encode(o); err == nil {
		err = json.NewDecoder(c).Decode(&r)
	}
	if err == nil && r.Err != "" {
		err = errors.New(r.Err)
	}
	if err != nil {
		d.t.Fatalf("order %q: %v", o.Do, err)
	}
	return r
}

func (d *daemon) rule(r blk.Rule, err string) { d.order(order{Do: "rule", Rule: r, Err: err}) }

func (d *daemon) held() int { return d.order(order{Do: "look"}).Held }

// heal ends all that rules do, lets go what they hold, and says how many requests
// they have harmed.
func (d *daemon) heal() (hits int) {
	hits = d.order(order{Do: "clear"}).Hits
	d.order(order{Do: "release"})
	return hits
}
