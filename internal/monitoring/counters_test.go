package monitoring

import (
	"context"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/adversary"
	"github.com/rdsd/rdsd/node/base"
	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
	"github.com/rdsd/rdsd/shm"
)

// movers move counters of the front ends: what a client does, and what counts it.
var movers = map[string]func(m *moved){
	"binds_refused": func(m *moved) {
		s := m.bind(rdsd.GRPC)
		if _, err := m.d.Dial().Bind(m.ctx, s.LocalAddr()); err == nil {
			m.t.Error("a port is bound twice")
		}
	},
	"stream_errors": func(m *moved) {
		c, err := grpc.NewClient("unix:"+m.d.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			m.t.Fatal(err)
		}
		defer c.Close()
		st, err := rdsdv1.NewDatagramsClient(c).Open(m.ctx)
		if err == nil {
			err = st.Send(&rdsdv1.ClientMessage{}) // it is not bind
		}
		if err != nil {
			m.t.Fatal(err)
		}
		if _, err = st.Recv(); err == nil {
			m.t.Error("a stream that does not begin with bind goes on")
		}
	},
	"send_batches":         func(m *moved) { m.exchange(rdsd.GRPC) },
	"recv_batches":         func(m *moved) { m.exchange(rdsd.GRPC) },
	"recv_batch_datagrams": func(m *moved) { m.exchange(rdsd.GRPC) },
	"ring_posts":           func(m *moved) { m.exchange(rdsd.Rings) },
	"ring_datagrams":       func(m *moved) { m.exchange(rdsd.Rings) },
	"ring_wakes":           func(m *moved) { m.exchange(rdsd.Rings) },
	"send_rejected":        func(m *moved) { m.forbidden() },
	"ring_refused":         func(m *moved) { m.strayPost() },
	"pairs_offered":        func(m *moved) { m.paired() },
	"pairs_opened":         func(m *moved) { m.paired() },
	"pairs_closed":         func(m *moved) { m.paired().Close() },
	"pair_datagrams":       func(m *moved) { m.paired() },
	"pair_wakes": func(m *moved) {
		from := m.paired()
		time.Sleep(20 * time.Millisecond) // for the reader to sleep
		if err := from.Send(m.ctx, m.reader, []byte("to one that sleeps")); err != nil {
			m.t.Fatal(err)
		}
	},
	"push_stalls": func(m *moved) {
		slow, s := m.bind(rdsd.GRPC, rdsd.WithRecvWindow(1, 1)), m.bind(rdsd.GRPC)
		for range 10 {
			if err := s.Send(m.ctx, slow.LocalAddr(), []byte("unread")); err != nil {
				m.t.Fatal(err)
			}
		}
	},
}

// movedElsewhere are the counters that take more than a client to move, or that it moves
// only by harm, with what a test says of each that fails when it stands still.
var movedElsewhere = map[string]string{
	"clients_refused":          `ClientsRefused.Load(); n != 1`,
	"clients_costly":           `Count.ClientsCostly.Load() > 0`,
	"descriptors_refused":      `Count.DescriptorsRefused.Load() != before+1`,
	"accept_errors":            `failed.Load(); n != 10`,
	"calls_rate_limited":       `CallsRateLimited.Load() != 1`,
	"log_lost":                 `lost := w.lost.Load()`,
	"log_suppressed":           `suppressed.Load() != 98`,
	"admin_denied":             `Count.AdminDenied.Load() != 6`,
	"regions_given_back_bytes": `Count.RegionsGivenBack.Load() < 6<<20`,
	"regions_forgotten":        `Count.RegionsForgotten.Load(); got != forgotten`,
	"rings_hostile":            `Count.RingsHostile.Load() != 1`,
}

// moved is a daemon whose counters are looked at.
type moved struct {
	t    *testing.T
	ctx  context.Context
	d    *rdsdtest.Daemon
	http string

	reader netip.AddrPort // of the last paired
}

func (m *moved) bind(fe rdsd.FrontEnd, opts ...rdsd.BindOption) *rdsd.Socket {
	m.t.Helper()
	s, err := m.d.Dial(rdsd.WithFrontEnd(fe)).Bind(m.ctx, netip.AddrPortFrom(m.d.Addr, 0), opts...)
	if err != nil {
		m.t.Fatal(err)
	}
	return s
}

// paired returns a socket whose flow to another one goes by a pair.
func (m *moved) paired() *rdsd.Socket {
	m.t.Helper()
	from, to := m.bind(rdsd.Rings), m.bind(rdsd.Rings, rdsd.WithSpin(0))
	go func() { // ends with the socket
		for {
			if _, err := to.Recv(m.ctx); err != nil {
				return
			}
		}
	}()
	m.reader = to.LocalAddr()
	before := m.counter("pair_datagrams")
	for end := time.Now().Add(10 * time.Second); m.counter("pair_datagrams") == before; {
		for range 2000 {
			if err := from.Send(m.ctx, m.reader, []byte("busy")); err != nil {
				m.t.Fatal(err)
			}
		}
		if time.Now().After(end) {
			m.t.Fatal("a busy flow gets no pair")
		}
	}
	return from
}

// exchange sends to a reader that sleeps.
func (m *moved) exchange(fe rdsd.FrontEnd) {
	from, to := m.bind(fe), m.bind(fe, rdsd.WithSpin(0))
	got := make(chan error, 1)
	go func() {
		_, err := to.Recv(m.ctx)
		got <- err
	}()
	time.Sleep(20 * time.Millisecond) // for the reader to sleep; if it does not yet, the mover is called again
	if err := from.Send(m.ctx, to.LocalAddr(), []byte("to one that sleeps")); err != nil {
		m.t.Fatal(err)
	}
	if err := <-got; err != nil {
		m.t.Fatal(err)
	}
}

// forbidden sends to where no peer is allowed.
func (m *moved) forbidden() {
	if err := m.bind(rdsd.GRPC).Send(m.ctx, netip.MustParseAddrPort("198.51.100.1:4000"), []byte("x")); err == nil {
		m.t.Error("a peer that no rule allows is sent to")
	}
}

// strayPost posts to a destination that the flow table does not have: no client does.
func (m *moved) strayPost() {
	s := adversary.NewStage(m.ctx, adversary.Target{Socket: m.d.Socket, Daemon: m.d.Addr}, 1)
	defer s.Clear()
	r, err := s.BindRing(0, 0)
	if err != nil {
		m.t.Fatal(err)
	}
	r.Flow(0, 1, r.Local)
	r.Post(shm.MakeWord(shm.KindEach, 0, 1), shm.SendDesc{Gen: 2})
	r.Ring()
	for end := time.Now().Add(10 * time.Second); r.Events() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			m.t.Fatal("nothing is said of a stray post")
		}
	}
}

// counter reads one from the page.
func (m *moved) counter(name string) uint64 {
	m.t.Helper()
	w := &world{t: m.t, ctx: m.ctx}
	page, err := w.get(m.http, "/metrics")
	if err != nil {
		m.t.Fatal(err)
	}
	v := regexp.MustCompile(`(?m)^rdsd_` + name + `_total (\S+)$`).FindStringSubmatch(page)
	if v == nil {
		m.t.Fatalf("rdsd_%s_total is not on the page", name)
	}
	f, err := strconv.ParseFloat(v[1], 64)
	if err != nil {
		m.t.Fatal(err)
	}
	return uint64(f)
}

// TestFrontEndCountersMove: every counter of the front ends is moved here by what it
// counts, or a test that moves it is named. Those of the protocol are in internal/simtest.
func TestFrontEndCountersMove(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	m := &moved{t: t, ctx: ctx, http: netip.AddrPortFrom(rdsdtest.AddrA, uint16(rdsdtest.FreePort(t, rdsdtest.AddrA))).String()}
	m.d = rdsdtest.Start(t, rdsdtest.AddrA, rdsdtest.FreePort(t, rdsdtest.AddrA), "--http", m.http, "--pairs", "auto")
	listed := map[string]bool{}
	for _, c := range base.CounterTable.Descs() {
		move, here := movers[c.Name]
		_, elsewhere := movedElsewhere[c.Name]
		listed[c.Name] = true
		if here == elsewhere {
			t.Errorf("%s: one test moves it, here or elsewhere", c.Name)
		}
		if !here {
			continue
		}
		before := m.counter(c.Name)
		for end := time.Now().Add(10 * time.Second); m.counter(c.Name) == before; time.Sleep(300 * time.Millisecond) {
			if time.Now().After(end) {
				t.Errorf("%s does not move", c.Name)
				break
			}
			move(m)
		}
	}
	tests := allTests(t)
	for name, says := range movedElsewhere {
		if !listed[name] || !strings.Contains(tests, says) {
			t.Errorf("%s: there is no such counter, or no test says %s", name, says)
		}
	}
}

// allTests is the text of the tests of the rooms that count.
func allTests(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, dir := range []string{"node", filepath.Join("internal", "accept")} {
		err := filepath.WalkDir(file(dir), func(path string, d fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, "_test.go") {
				text, err := os.ReadFile(path)
				b.Write(text)
				return err
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}
