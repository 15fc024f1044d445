package node

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/kernelpeer"
	"github.com/rdsd/rdsd/node/client"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/health"
	"github.com/rdsd/rdsd/node/volume"
)

// ill is a running node that has, or will have, problems.
type ill struct {
	n    *Node
	cfg  *config.Config
	stop func() error
	api  rdsdv1.AdminClient
}

// startIll starts a node at an address of its own, with a changed configuration.
func startIll(t *testing.T, change func(*config.Config)) *ill {
	t.Helper()
	cfg := testConfig(t)
	cfg.RDS.Addresses = []netip.Addr{loopbackAddr()}
	if change != nil {
		change(cfg)
	}
	n, err := New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &ill{n, cfg, startNode(t, n), rdsdv1.NewAdminClient(dial(t, cfg))}
}

func (x *ill) addr() netip.Addr { return x.cfg.RDS.Addresses[0] }

// said are the problems that the node tells of itself.
func (x *ill) said(t *testing.T) []*rdsdv1.Problem {
	t.Helper()
	st, err := x.api.GetStatus(testContext(t), &rdsdv1.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return st.GetProblem()
}

// problems are the worst of each code.
func (x *ill) problems(t *testing.T) map[string]*rdsdv1.Problem {
	t.Helper()
	list := map[string]*rdsdv1.Problem{}
	for _, p := range x.said(t) {
		if list[p.GetCode()] == nil { // which comes first
			list[p.GetCode()] = p
		}
	}
	return list
}

// has waits until the node says that it has a problem, of that severity at least, and
// that what is said has the text. It may have others of that code.
func (x *ill) has(t *testing.T, code health.Code, severity rdsdv1.ProblemSeverity, text string) {
	t.Helper()
	var last []*rdsdv1.Problem
	defer func() {
		if t.Failed() {
			t.Logf("it has %v", last)
		}
	}()
	await.Until(t, 30*time.Second, fmt.Sprintf("the problem %v, %v, saying %q", code, severity, text), func() bool {
		last = x.said(t)
		return slices.ContainsFunc(last, func(p *rdsdv1.Problem) bool {
			return p.GetCode() == code.String() && p.GetSeverity() >= severity && strings.Contains(p.GetText(), text) && p.GetRemedy() != ""
		})
	})
}

const (
	note    = rdsdv1.ProblemSeverity_PROBLEM_SEVERITY_NOTE
	warning = rdsdv1.ProblemSeverity_PROBLEM_SEVERITY_WARNING
	failure = rdsdv1.ProblemSeverity_PROBLEM_SEVERITY_ERROR
)

// noPeer is the address of a node that there is not.
func (x *ill) noPeer() netip.AddrPort { return netip.AddrPortFrom(loopbackAddr(), 4000) }

// rule is what decides over an address or network.
func rule(t *testing.T, prefix string, kernel, deny bool) config.PeerRule {
	t.Helper()
	r := config.PeerRule{Kernel: kernel, Deny: deny}
	if err := r.Address.UnmarshalText([]byte(prefix)); err != nil {
		t.Fatal(err)
	}
	return r
}

// bind opens a socket that lasts as long as the test.
func (x *ill) bind(t *testing.T, b *rdsdv1.Bind) *testSocket {
	t.Helper()
	s, err := openSocketFor(t.Context(), t, x.cfg, b)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// sends a datagram from a new socket of the node, and does not wait for what becomes of it.
func (x *ill) sends(t *testing.T, to netip.AddrPort) {
	t.Helper()
	s := x.bind(t, bindTo(x.addr(), 0))
	b := batchOf(1, to, "x")
	b.SetWait(true)
	s.send(b)
}

// congests a port of x, that nobody reads, from a socket of from, which then waits for it.
func (x *ill) congests(t *testing.T, from *ill) (port netip.AddrPort, reader *testSocket) {
	t.Helper()
	b := &rdsdv1.Bind{} // no credit: never read
	b.SetLocal(client.EndpointPB(netip.AddrPortFrom(x.addr(), 4300)))
	b.SetRecvBufferBytes(4096)
	b.SetLabel("sleeper")
	reader = x.bind(t, b)
	s := from.bind(t, bindTo(from.addr(), 0))
	await.Until(t, 20*time.Second, "the port is congested", func() bool {
		s.send(batchOf(1, reader.local, strings.Repeat("x", 3000)))
		return len(want(s, asResult).GetErrors()) > 0
	})
	wait := batchOf(2, reader.local, strings.Repeat("x", 3000))
	wait.SetWait(true)
	s.send(wait)
	return reader.local, reader
}

// newKernel is the address of a kernel that x connects to, which has a greater one.
func newKernel(t *testing.T, x *ill) netip.Addr {
	t.Helper()
	addr := loopbackAddr()
	k, err := kernelpeer.Listen(netip.AddrPortFrom(addr, x.cfg.RDS.Port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return addr
}

// relay lets one connection at a time through from where it listens to the same port of
// another address, and closes every other one that comes.
func relay(t *testing.T, at, to netip.AddrPort, from netip.Addr) {
	t.Helper()
	lis, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	through := false
	wg.Go(func() {
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			if through {
				mu.Unlock()
				c.Close()
				continue
			}
			d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
			far, err := d.Dial("tcp", to.String())
			if err != nil {
				mu.Unlock()
				c.Close()
				continue
			}
			through = true
			open = append(open, c, far)
			mu.Unlock()
			for _, pair := range [][2]net.Conn{{c, far}, {far, c}} {
				wg.Go(func() {
					io.Copy(pair[0], pair[1])
					pair[0].Close()
					mu.Lock()
					through = false
					mu.Unlock()
				})
			}
		}
	})
	t.Cleanup(func() {
		lis.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
}

// TestEveryProblem: each problem that the table of docs/operations.md has is one that a
// node has had here, for real, and has told of.
func TestEveryProblem(t *testing.T) {
	var mu sync.Mutex
	seen := map[health.Code]bool{}
	has := func(t *testing.T, x *ill, code health.Code, severity rdsdv1.ProblemSeverity, text string) {
		t.Helper()
		x.has(t, code, severity, text)
		mu.Lock()
		seen[code] = true
		mu.Unlock()
	}
	cases := map[string]func(t *testing.T){
		"its configuration": func(t *testing.T) {
			x := startIll(t, func(c *config.Config) {
				c.API.RemoteListen, c.API.Insecure = "127.0.0.1:0", true
				c.API.Ledger = "none"
				c.Limits.MaxClients, c.Limits.MaxPeers = 65536, 65536
				c.Volumes.StateDir = "none"
				c.Volumes.Exports = []config.VolumeExport{{Name: "gone", Path: filepath.Join(t.TempDir(), "gone")}}
			})
			has(t, x, health.LoopbackOnly, note, "loopback")
			has(t, x, health.RemoteInsecure, note, "127.0.0.1")
			has(t, x, health.NoLedger, note, "no ledger")
			has(t, x, health.DescriptorsShort, note, "")
			has(t, x, health.NoVolumeState, note, "nothing persists")
			has(t, x, health.ExportFailed, failure, "no such file")
			has(t, x, health.LogErrors, note, "")
		},
		"a variable that names no key": func(t *testing.T) {
			c, err := config.Load(config.LoadOptions{Env: []string{"RDSD_NO_SUCH_KEY=1"}})
			if err != nil {
				t.Fatal(err)
			}
			x := startIll(t, func(cfg *config.Config) {
				own := *cfg
				*cfg = *c
				cfg.RDS.Addresses, cfg.RDS.Port, cfg.API, cfg.HTTP = own.RDS.Addresses, own.RDS.Port, own.API, own.HTTP
			})
			has(t, x, health.UnknownSetting, note, "RDSD_NO_SUCH_KEY")
		},
		"nobody may be a peer": func(t *testing.T) {
			addrs, err := net.InterfaceAddrs()
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(addrs, func(a net.Addr) bool {
				p, err := netip.ParsePrefix(a.String())
				return err == nil && p.Addr().Is4() && !p.Addr().IsLoopback()
			})
			if i < 0 {
				mu.Lock()
				seen[health.NoPeers] = true // it cannot be had here
				mu.Unlock()
				t.Skip("this machine has no address beyond loopback")
			}
			x := startIll(t, func(c *config.Config) {
				c.RDS.Addresses = []netip.Addr{netip.MustParsePrefix(addrs[i].String()).Addr()}
			})
			has(t, x, health.NoPeers, warning, "no peer")
		},
		"a panic": func(t *testing.T) {
			x := startIll(t, nil)
			x.n.deps.Guard.Do(guard.Link, func() { panic("on purpose") })
			has(t, x, health.Panicked, failure, "1 panic")
		},
		"its state is lost": func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "volumes.json"), []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
			x := startIll(t, func(c *config.Config) { c.Volumes.StateDir = dir })
			has(t, x, health.StateLost, failure, "what was persistent is not there: ")
			// What mends one that could not be written would mend nothing here.
			for _, p := range x.problems(t) {
				if p.GetCode() == health.StateLost.String() && (strings.Contains(p.GetRemedy(), "make room") || !strings.Contains(p.GetRemedy(), "mend the file")) {
					t.Errorf("to do: %s", p.GetRemedy())
				}
			}
		},
		"it drains": func(t *testing.T) {
			x := startIll(t, nil)
			x.sends(t, x.noPeer())
			x.problems(t) // so that the connection is there
			stopped := make(chan struct{})
			go func() { // ends with the drain
				x.stop()
				close(stopped)
			}()
			has(t, x, health.NotServing, warning, "drain")
			<-stopped
		},
		"its limits": func(t *testing.T) {
			x := startIll(t, func(c *config.Config) { c.Limits.MaxSockets, c.Limits.MaxSocketsPerUID = 10, 10 })
			for range 9 {
				x.bind(t, bindTo(x.addr(), 0))
			}
			has(t, x, health.LimitNear, warning, "9 of 10")
			x.bind(t, bindTo(x.addr(), 0))
			has(t, x, health.LimitReached, failure, "10 of 10")
		},
		"a user's share of the memory": func(t *testing.T) {
			x := startIll(t, func(c *config.Config) {
				c.Limits.MemoryBytes, c.RDS.SendBufferMax, c.RDS.RecvBufferMax = 32<<20, 32<<20, 32<<20
			})
			nobody, said := x.noPeer(), ""
			// In messages of one frame each, which cost all the same while they come: one that costs more than the last
			// could find no room itself, and its connection would be ended for it.
			for i := 0; i < 32*64 && said == ""; {
				s := x.bind(t, bindTo(x.addr(), 0))
				for end := i + 64; i < end && said == ""; i++ {
					s.send(batchOf(1, nobody, strings.Repeat("x", 15_000)))
					if l := want(s, asResult).GetErrors(); len(l) > 0 && errno(l[0].GetErrno()) == syscall.ENOMEM {
						said = l[0].GetMessage()
					}
				}
			}
			if !strings.Contains(said, "holds its share of limits.memory_bytes") {
				t.Errorf("who has its share is told %q", said)
			}
			has(t, x, health.LimitReached, warning, "memory_sending")
		},
		"a peer that is not there": func(t *testing.T) {
			x := startIll(t, nil)
			nobody := x.noPeer()
			x.sends(t, nobody)
			has(t, x, health.PeerDown, failure, "1 datagram waiting")
			next := copyOf(x.cfg)
			next.Peers = []config.PeerRule{rule(t, nobody.Addr().String(), false, true)}
			if err := x.n.Reload(next); err != nil {
				t.Fatal(err)
			}
			has(t, x, health.PeerNotAllowed, failure, nobody.Addr().String())
		},
		"a peer that is not there and that nobody needs": func(t *testing.T) {
			x := startIll(t, nil)
			ctx, closeIt := context.WithCancel(t.Context())
			defer closeIt()
			s, err := openSocketFor(ctx, t, x.cfg, bindTo(x.addr(), 0))
			if err != nil {
				t.Fatal(err)
			}
			b := batchOf(1, x.noPeer(), "x")
			b.SetWait(true)
			s.send(b)
			has(t, x, health.PeerDown, failure, "1 datagram waiting")
			closeIt() // which takes the datagram back
			await.Until(t, 30*time.Second, "nobody is told of the peer any more", func() bool {
				return x.problems(t)[health.PeerDown.String()] == nil
			})
		},
		"a peer that goes while its port is congested": func(t *testing.T) {
			x := startIll(t, nil)
			y := startIll(t, func(c *config.Config) { c.RDS.Port = x.cfg.RDS.Port })
			y.congests(t, x)
			has(t, x, health.RemoteCongested, warning, "does not read fast enough")
			y.stop()
			has(t, x, health.PeerDown, failure, " waiting") // one, and perhaps what was under way
			has(t, x, health.RemoteCongested, warning, "there is no link to it now")
		},
		"a peer that refuses": func(t *testing.T) {
			x := startIll(t, nil)
			y := startIll(t, func(c *config.Config) {
				c.RDS.Port = x.cfg.RDS.Port
				c.Peers = []config.PeerRule{rule(t, x.addr().String(), false, true)}
			})
			x.sends(t, netip.AddrPortFrom(y.addr(), 4000))
			has(t, y, health.PeerRefused, warning, x.addr().String())
		},
		"a peer of which some lanes are up": func(t *testing.T) {
			x := startIll(t, nil)
			// y listens at another port, and only the relay is where x looks for it.
			y := startIll(t, nil)
			at := netip.AddrPortFrom(y.addr(), x.cfg.RDS.Port)
			relay(t, at, netip.AddrPortFrom(y.addr(), y.cfg.RDS.Port), x.addr())
			for port := range uint16(32) { // sockets have lanes by their ports
				x.sends(t, netip.AddrPortFrom(y.addr(), 4000+port))
			}
			has(t, x, health.PeerPartlyUp, warning, " lanes to "+y.addr().String()+" are up")
		},
		"a kernel that is not allowed": func(t *testing.T) {
			x := startIll(t, func(c *config.Config) { c.Peers = []config.PeerRule{rule(t, "127.0.0.0/8", false, false)} })
			x.sends(t, netip.AddrPortFrom(newKernel(t, x), 4000))
			has(t, x, health.KernelNotAllowed, failure, "is a kernel")
		},
		"a link that is not read": func(t *testing.T) {
			x := startIll(t, func(c *config.Config) { c.Peers = []config.PeerRule{rule(t, "127.0.0.0/8", true, false)} })
			addr := loopbackAddr()
			kernel, err := kernelpeer.Listen(netip.AddrPortFrom(addr, x.cfg.RDS.Port))
			if err != nil {
				t.Fatal(err)
			}
			end := sync.OnceFunc(kernel.Close)
			t.Cleanup(end)
			b := &rdsdv1.Bind{} // no credit: never read
			b.SetLocal(client.EndpointPB(netip.AddrPortFrom(x.addr(), 4300)))
			b.SetRecvBufferBytes(4096)
			x.bind(t, b)
			x.sends(t, netip.AddrPortFrom(addr, 4000)) // the daemon connects
			<-kernel.Got()
			sent := make(chan struct{})
			go func() { // ends when the link does
				defer close(sent)
				for kernel.Send(kernelpeer.Frame{Source: 4000, Destination: 4300, Payload: make([]byte, 4096)}) == nil {
				}
			}()
			has(t, x, health.LinkPaused, warning, "not read")
			end()
			<-sent
		},
		"ports that nobody reads": func(t *testing.T) {
			x := startIll(t, nil)
			y := startIll(t, func(c *config.Config) { c.RDS.Port = x.cfg.RDS.Port })
			port, _ := x.congests(t, y)
			has(t, x, health.PortCongested, warning, `"sleeper", pid`)
			has(t, y, health.RemoteCongested, warning, port.String()+" is congested")
			has(t, y, health.RemoteCongested, warning, "1 socket here waiting")
			has(t, y, health.RemoteCongested, warning, `"sleeper", pid`) // though nobody has asked y for what is congested
		},
		"a kernel's server, of which a path is lost": func(t *testing.T) {
			port := freePort(t)
			y := startIll(t, func(c *config.Config) {
				c.RDS.Addresses = append(c.RDS.Addresses, loopbackAddr())
				c.Volumes.Port, c.Volumes.Name = port, "y"
			})
			cfg := testConfig(t)
			cfg.RDS.Addresses, cfg.Volumes.Port, cfg.Volumes.Unfenced = []netip.Addr{loopbackAddr()}, port, volume.UnfencedNow
			n, err := New(cfg, nil)
			if err != nil {
				t.Fatal(err)
			}
			n.tune = func(d *volume.Deps) { d.Provider = kernelpeer.Volumes(d.Provider) }
			x := &ill{n, cfg, startNode(t, n), rdsdv1.NewAdminClient(dial(t, cfg))}
			if _, err := y.n.volumes.Load().Export(t.Context(), volume.ExportSpec{Name: "mem", Kind: volume.KindMemory, Size: 1 << 20}); err != nil {
				t.Fatal(err)
			}
			h := x.n.volumes.Load()
			m, err := h.Map(t.Context(), volume.MapSpec{Node: y.addr().String(), Name: "mem", Policy: "rr",
				Paths: []volume.PathSpec{{Dst: y.cfg.RDS.Addresses[0].String()}, {Dst: y.cfg.RDS.Addresses[1].String()}}})
			if err != nil {
				t.Fatal(err)
			}
			dev, err := nbd.DialURI(t.Context(), m.URI)
			if err != nil {
				t.Fatal(err)
			}
			reads := make(chan error, 1)
			stop := make(chan struct{})
			go func() { // ends with stop
				for {
					select {
					case <-stop:
						reads <- nil
						return
					default:
					}
					if _, err := dev.ReadAt(make([]byte, 512), 0); err != nil {
						reads <- err
						return
					}
				}
			}()
			to := volume.PathSpec{Dst: y.cfg.RDS.Addresses[1].String()}
			await.Until(t, 30*time.Second, "a path ends with a request in flight", func() bool {
				h.ReconnectPath(t.Context(), m.Session, to) // a connected one is given up first
				return h.Sessions()[0].UnfencedFailovers > 0
			})
			close(stop)
			if err := <-reads; err != nil {
				t.Errorf("a read failed: %v", err)
			}
			dev.Close()
			has(t, x, health.UnfencedFailovers, note, "at once")
		},
		"a store that stands still": func(t *testing.T) {
			port := freePort(t)
			cfg := testConfig(t)
			cfg.RDS.Addresses, cfg.Volumes.Port, cfg.Volumes.Name = []netip.Addr{loopbackAddr()}, port, "y"
			n, err := New(cfg, nil)
			if err != nil {
				t.Fatal(err)
			}
			var store *blk.Fault
			n.LayerStores(func(_ string, d blk.Device) blk.Device {
				store = blk.NewFault(d, 1)
				store.Add(blk.Rule{Stall: true})
				return store
			})
			startNode(t, n)
			if _, err := n.volumes.Load().Export(t.Context(), volume.ExportSpec{Name: "mem", Kind: volume.KindMemory, Size: 1 << 20}); err != nil {
				t.Fatal(err)
			}
			x := startIll(t, func(c *config.Config) { c.Volumes.Port, c.Volumes.Name = port, "x" })
			m, err := x.n.volumes.Load().Map(t.Context(), volume.MapSpec{Node: cfg.RDS.Addresses[0].String(), Name: "mem", IOTimeout: 100 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			dev, err := nbd.DialURI(t.Context(), m.URI)
			if err != nil {
				t.Fatal(err)
			}
			defer dev.Close()
			read := make(chan error, 1)
			go func() { // ends when the store goes on
				_, err := dev.ReadAt(make([]byte, 512), 0)
				read <- err
			}()
			has(t, x, health.VolumeStalled, failure, "has not been answered for")
			store.Clear()
			store.Release()
			if err := <-read; err != nil {
				t.Errorf("the read failed: %v", err)
			}
			await.Until(t, 30*time.Second, "nothing waits any more", func() bool { return x.problems(t)[health.VolumeStalled.String()] == nil })
		},
		"volumes": func(t *testing.T) {
			port := freePort(t)
			with := func(name string) func(c *config.Config) {
				return func(c *config.Config) { c.Volumes.Port, c.Volumes.Name = port, name }
			}
			x, y := startIll(t, func(c *config.Config) {
				with("x")(c)
				// Each attempt is another state of the path, and none of them lasts for a second: the path is down for all that.
				c.Volumes.ReconnectMin.Duration, c.Volumes.ReconnectMax.Duration = 20*time.Millisecond, 100*time.Millisecond
			}), startIll(t, with("y"))
			ctx := t.Context()
			if _, err := rdsdv1.NewVolumeServiceClient(dial(t, y.cfg)).Export(ctx, rdsdv1.VolumeExportRequest_builder{Name: "mem", Kind: rdsdv1.VolumeKind_VOLUME_KIND_MEMORY, SizeBytes: 1 << 20}.Build()); err != nil {
				t.Fatal(err)
			}
			m, err := rdsdv1.NewVolumeServiceClient(dial(t, x.cfg)).Map(ctx, rdsdv1.VolumeMapRequest_builder{Node: y.addr().String(), Name: "mem",
				OnLoss: rdsdv1.VolumeOnLoss_VOLUME_ON_LOSS_ERROR, LossTimeoutNs: int64(10 * time.Millisecond)}.Build())
			if err != nil {
				t.Fatal(err)
			}
			has(t, x, health.OnePath, note, "one path")
			dev, err := nbd.DialURI(ctx, m.GetUri())
			if err != nil {
				t.Fatal(err)
			}
			defer dev.Close()
			y.stop()
			has(t, x, health.VolumePathDown, warning, "the path from ")
			has(t, x, health.MappingDown, failure, "no path to "+y.addr().String())
			await.Until(t, 20*time.Second, "a request fails", func() bool {
				_, err := dev.ReadAt(make([]byte, 512), 0)
				return err != nil
			})
			has(t, x, health.VolumeErrors, warning, "failed since it was mapped, the last ")
		},
	}
	t.Run("each", func(t *testing.T) {
		for name, f := range cases {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f(t)
			})
		}
	})
	for _, c := range health.Codes() {
		if !seen[c] && !t.Failed() {
			t.Errorf("no node had the problem %v", c)
		}
	}
}
