package rdsd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/rdserr"
	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

// The format is described in ../scenario/README.md.

type scenarioFile struct {
	Version   int
	Scenarios []scenario
}

type scenario struct {
	Name, About string
	Sockets     map[string]socketSpec
	Steps       []json.RawMessage
}

type socketSpec struct {
	At         string
	Addr       string
	Port       uint16
	SendBuffer int    `json:"send_buffer"`
	RecvBuffer int    `json:"recv_buffer"`
	RecvWindow [2]int `json:"recv_window"`
	Outcomes   bool
}

type step struct {
	socketSpec
	Op, On     string
	To, From   json.RawMessage
	Payload    json.RawMessage
	Reply      json.RawMessage
	Repeat     json.RawMessage
	Cancelled  json.RawMessage
	Datagrams  []struct{ To, Payload json.RawMessage }
	Accepted   int
	Errors     map[string]string
	Error      string
	UntilError string `json:"until_error"`
	Max        int
	CountAs    string `json:"count_as"`
	Count      int
	Burst      int
	Paired     bool `json:"until_paired"`
	Expect     map[string]int
	Reason     string
	Is         bool
	Congested  bool
	Size       *int
	As         string
	TimeoutMs  int `json:"timeout_ms"`
}

func TestScenarios(t *testing.T) {
	raw, err := os.ReadFile("../scenario/scenario.json")
	if err != nil {
		t.Fatal(err)
	}
	var file scenarioFile
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&file); err != nil {
		t.Fatal(err)
	}
	if file.Version != 1 || len(file.Scenarios) < 20 {
		t.Fatalf("version %d with %d scenarios", file.Version, len(file.Scenarios))
	}
	a, b := scenarioHosts(t)
	for _, fe := range []rdsd.FrontEnd{rdsd.GRPC, rdsd.Rings} {
		hosts := map[string]host{"A": a.dial(t, fe), "B": b.dial(t, fe)}
		t.Run(fe.String(), func(t *testing.T) {
			for _, sc := range file.Scenarios {
				t.Run(sc.Name, func(t *testing.T) { runScenario(t, hosts, sc) })
			}
		})
	}
}

// host is one of the two daemons.
type host struct {
	socket string
	client *rdsd.Client
	addr   netip.Addr
}

// dial is the host with a client of its own.
func (h host) dial(t *testing.T, fe rdsd.FrontEnd) host {
	c, err := rdsd.Dial(h.socket, rdsd.WithFrontEnd(fe))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	h.client = c
	return h
}

func scenarioHosts(t *testing.T) (a, b host) {
	var given []host
	for _, name := range []string{"A", "B"} {
		if socket, addr, ok := strings.Cut(os.Getenv("RDSD_SCENARIO_"+name), ","); ok {
			given = append(given, host{socket: socket, addr: netip.MustParseAddr(addr)})
		}
	}
	if len(given) == 2 {
		return given[0], given[1]
	}
	x, y := rdsdtest.Pair(t)
	return host{socket: x.Socket, addr: x.Addr}, host{socket: y.Socket, addr: y.Addr}
}

// run is one scenario under way.
type run struct {
	t      *testing.T
	hosts  map[string]host
	socks  map[string]*rdsd.Socket
	addrs  map[string]netip.AddrPort // also of closed sockets
	counts map[string]int
	leases map[string]*borrowed
	slots  map[string]*rdsd.Slot
	events map[string]chan rdsd.CongestionChange
	ctx    context.Context // of what runs beside the steps
	echoes []chan error
}

func runScenario(t *testing.T, hosts map[string]host, sc scenario) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	r := &run{
		t: t, hosts: hosts, ctx: ctx,
		socks: map[string]*rdsd.Socket{}, addrs: map[string]netip.AddrPort{},
		counts: map[string]int{}, events: map[string]chan rdsd.CongestionChange{},
		leases: map[string]*borrowed{}, slots: map[string]*rdsd.Slot{},
	}
	defer func() {
		for _, s := range r.socks {
			s.Close()
		}
	}()
	names := make([]string, 0, len(sc.Sockets))
	for name := range sc.Sockets {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := r.bind(ctx, name, sc.Sockets[name]); err != nil {
			t.Fatal(err)
		}
	}
	for i, raw := range sc.Steps {
		var st step
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&st); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		if err := r.step(&st); err != nil {
			t.Fatalf("step %d, %s on %s: %v", i, st.Op, st.On, err)
		}
	}
	for _, done := range r.echoes {
		if err := <-done; err != nil {
			t.Errorf("echo: %v", err)
		}
	}
}

func (r *run) bind(ctx context.Context, name string, spec socketSpec) error {
	h, ok := r.hosts[spec.At]
	if !ok {
		r.t.Fatalf("socket %s: no daemon %q", name, spec.At)
	}
	addr := h.addr
	if spec.Addr != "" {
		addr = r.literal(spec.Addr)
	}
	opts := []rdsd.BindOption{rdsd.WithSendBuffer(spec.SendBuffer), rdsd.WithRecvBuffer(spec.RecvBuffer),
		rdsd.WithRecvWindow(spec.RecvWindow[0], spec.RecvWindow[1]), rdsd.WithLabel("scenario " + name)}
	if spec.Outcomes {
		opts = append(opts, rdsd.WithOutcomes())
	}
	s, err := h.client.Bind(ctx, netip.AddrPortFrom(addr, spec.Port), opts...)
	if err != nil {
		return err
	}
	r.socks[name], r.addrs[name] = s, s.LocalAddr()
	return nil
}

func (r *run) literal(addr string) netip.Addr {
	if h, ok := r.hosts[addr]; ok {
		return h.addr
	}
	return netip.MustParseAddr(addr)
}

// addr reads "b" or ["B", 7].
func (r *run) addr(raw json.RawMessage) netip.AddrPort {
	var name string
	if json.Unmarshal(raw, &name) == nil {
		a, ok := r.addrs[name]
		if !ok {
			r.t.Fatalf("no socket %q", name)
		}
		return a
	}
	var pair []any
	if err := json.Unmarshal(raw, &pair); err != nil || len(pair) != 2 {
		r.t.Fatalf("address %s: %v", raw, err)
	}
	return netip.AddrPortFrom(r.literal(pair[0].(string)), uint16(pair[1].(float64)))
}

func (r *run) payload(raw json.RawMessage, i int) []byte {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return []byte(text)
	}
	var p struct {
		Size    int
		Counter bool
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		r.t.Fatalf("payload %s: %v", raw, err)
	}
	if p.Counter {
		return strconv.AppendInt(nil, int64(i), 10)
	}
	b := make([]byte, p.Size)
	for k := range b {
		b[k] = byte(k % 251)
	}
	return b
}

// number reads 3 or "n".
func (r *run) number(raw json.RawMessage, absent int) int {
	if raw == nil {
		return absent
	}
	var name string
	if json.Unmarshal(raw, &name) == nil {
		return r.counts[name]
	}
	n, err := strconv.Atoi(string(raw))
	if err != nil {
		r.t.Fatalf("number %s: %v", raw, err)
	}
	return n
}

func errnoOf(symbol string) syscall.Errno {
	if symbol == "EOPNOTSUPP" { // ErrnoName calls 95 ENOTSUP
		return syscall.EOPNOTSUPP
	}
	for n := syscall.Errno(1); n < 134; n++ {
		if unix.ErrnoName(n) == symbol {
			return n
		}
	}
	return 0
}

// expect compares an error with the symbol a step wants ("": none).
func expect(err error, symbol string) error {
	switch {
	case symbol == "":
		return err
	case err == nil:
		return fmt.Errorf("succeeded, want %s", symbol)
	case !errors.Is(err, errnoOf(symbol)):
		return fmt.Errorf("want %s, got %s: %w", symbol, unix.ErrnoName(rdserr.Errno(err)), err)
	}
	return nil
}

func (r *run) step(st *step) error {
	timeout := 5 * time.Second
	if st.TimeoutMs > 0 {
		timeout = time.Duration(st.TimeoutMs) * time.Millisecond
	}
	call := func(f func(ctx context.Context) error) error {
		ctx, cancel := context.WithTimeout(r.ctx, timeout)
		defer cancel()
		return expect(f(ctx), st.Error)
	}
	if st.Op == "bind" {
		return call(func(ctx context.Context) error { return r.bind(ctx, st.On, st.socketSpec) })
	}
	s := r.socks[st.On]
	if s == nil {
		return fmt.Errorf("no such socket")
	}
	switch st.Op {
	case "local":
		got := s.LocalAddr()
		if got.Addr() != r.literal(st.Addr) || got.Port() == 0 || st.Port != 0 && got.Port() != st.Port {
			return fmt.Errorf("bound to %v", got)
		}
	case "send":
		to, n := r.addr(st.To), r.number(st.Repeat, 1)
		for i := range n {
			if err := call(func(ctx context.Context) error { return s.Send(ctx, to, r.payload(st.Payload, i)) }); err != nil {
				return err
			}
		}
	case "try_send":
		return r.trySend(s, st)
	case "send_batch":
		return call(func(ctx context.Context) error { return r.sendBatch(ctx, s, st) })
	case "recv":
		for i := range r.number(st.Repeat, 1) {
			if err := call(func(ctx context.Context) error { return r.recv(ctx, s, st, i) }); err != nil {
				return fmt.Errorf("datagram %d: %w", i, err)
			}
		}
	case "volley":
		return r.volley(s, st, timeout)
	case "borrow":
		return call(func(ctx context.Context) error { return r.borrow(ctx, s, st) })
	case "release":
		return r.leases[st.As].release()
	case "reserve":
		return call(func(ctx context.Context) (err error) {
			r.slots[st.As], err = s.Reserve(ctx, r.addr(st.To), *st.Size)
			return err
		})
	case "commit":
		sl := r.slots[st.As]
		_, err := sl.Commit(copy(sl.Bytes(), r.payload(st.Payload, 0)))
		return expect(err, st.Error)
	case "abort":
		r.slots[st.As].Abort()
	case "request":
		return call(func(ctx context.Context) error {
			d, err := s.Request(ctx, r.addr(st.To), r.payload(st.Payload, 0))
			if err != nil {
				return err
			}
			return r.compare(d, st.To, st.Reply, 0)
		})
	case "reply":
		asked := rdsd.Datagram{Addr: r.addr(st.To)}
		return call(func(ctx context.Context) error { return s.Reply(ctx, asked, r.payload(st.Payload, 0)) })
	case "echo":
		r.echo(s, st.Count)
	case "cancel":
		return call(func(ctx context.Context) error {
			res, err := s.CancelSentTo(ctx, r.addr(st.To))
			if want := r.number(st.Cancelled, 0); err == nil && int(res.Cancelled) != want {
				return fmt.Errorf("%d cancelled, %d in flight, want %d cancelled", res.Cancelled, res.InFlight, want)
			}
			return err
		})
	case "flush":
		return call(s.Flush)
	case "outcomes":
		return call(func(ctx context.Context) error { return r.outcomes(ctx, s, st) })
	case "congested":
		return call(func(ctx context.Context) error {
			return poll(ctx, func() (bool, error) {
				is, err := s.Congested(ctx, r.addr(st.To))
				return is == st.Is, err
			})
		})
	case "watch":
		r.watch(st.On, s)
	case "event":
		return call(func(ctx context.Context) error { return r.event(ctx, st) })
	case "peek":
		return call(func(ctx context.Context) error {
			if st.Size == nil {
				n, ok, err := s.PeekSize(ctx)
				if ok {
					return fmt.Errorf("a datagram of %d bytes is there", n)
				}
				return err
			}
			return poll(ctx, func() (bool, error) {
				n, ok, err := s.PeekSize(ctx)
				return ok && n == *st.Size, err
			})
		})
	case "close":
		return expect(s.Close(), st.Error)
	default:
		return fmt.Errorf("unknown step")
	}
	return nil
}

// poll asks until the answer is yes: the other side may take a moment.
func poll(ctx context.Context, ask func() (bool, error)) error {
	for {
		ok, err := ask()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the answer does not change")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (r *run) trySend(s *rdsd.Socket, st *step) error {
	to := r.addr(st.To)
	if st.UntilError == "" {
		for i := range r.number(st.Repeat, 1) {
			if err := expect(s.TrySend(to, r.payload(st.Payload, i)), st.Error); err != nil {
				return err
			}
		}
		return nil
	}
	for i := range st.Max {
		if err := s.TrySend(to, r.payload(st.Payload, i)); err != nil {
			r.counts[st.CountAs] = i
			return expect(err, st.UntilError)
		}
	}
	return fmt.Errorf("%d datagrams were accepted without %s", st.Max, st.UntilError)
}

func (r *run) sendBatch(ctx context.Context, s *rdsd.Socket, st *step) error {
	ds := make([]rdsd.Datagram, len(st.Datagrams))
	for i, d := range st.Datagrams {
		ds[i] = rdsd.Datagram{Addr: r.addr(d.To), Payload: r.payload(d.Payload, i)}
	}
	n, err := s.SendBatch(ctx, ds)
	if n != st.Accepted {
		return fmt.Errorf("%d accepted, want %d: %v", n, st.Accepted, err)
	}
	var be *rdsd.BatchError
	if err != nil && !errors.As(err, &be) {
		return err
	}
	failed := 0
	if be != nil {
		failed = len(be.Errors)
		for _, e := range be.Errors {
			symbol, ok := st.Errors[strconv.Itoa(e.Index)]
			if !ok {
				return e.Err
			}
			if err := expect(e.Err, symbol); err != nil {
				return fmt.Errorf("index %d: %w", e.Index, err)
			}
		}
	}
	if failed != len(st.Errors) {
		return fmt.Errorf("%d failed, want %d: %v", failed, len(st.Errors), err)
	}
	return nil
}

func (r *run) recv(ctx context.Context, s *rdsd.Socket, st *step, i int) error {
	d, err := s.Recv(ctx)
	if err != nil {
		return err
	}
	if st.As != "" {
		r.addrs[st.As] = d.Addr
		return r.comparePayload(d, st.Payload, i)
	}
	return r.compare(d, st.From, st.Payload, i)
}

func (r *run) compare(d rdsd.Datagram, from, payload json.RawMessage, i int) error {
	if want := r.addr(from); d.Addr != want {
		return fmt.Errorf("from %v, want %v", d.Addr, want)
	}
	return r.comparePayload(d, payload, i)
}

func (r *run) comparePayload(d rdsd.Datagram, payload json.RawMessage, i int) error {
	if payload == nil {
		return nil
	}
	if want := r.payload(payload, i); !bytes.Equal(d.Payload, want) {
		return fmt.Errorf("%d bytes %.40q, want %d bytes %.40q", len(d.Payload), d.Payload, len(want), want)
	}
	return nil
}

func (r *run) echo(s *rdsd.Socket, count int) {
	done := make(chan error, 1)
	r.echoes = append(r.echoes, done)
	go func() { // ends with the scenario's context at the latest
		for range count {
			d, err := s.Recv(r.ctx)
			if err == nil {
				err = s.Send(r.ctx, d.Addr, d.Payload)
			}
			if err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
}

func (r *run) outcomes(ctx context.Context, s *rdsd.Socket, st *step) error {
	want, got := 0, map[string]int{}
	for _, n := range st.Expect {
		want += n
	}
	n := 0
	for o, err := range s.Outcomes(ctx) {
		if err != nil {
			return fmt.Errorf("after %v: %w", got, err)
		}
		got[o.Kind.String()]++
		if o.Kind != rdsd.Delivered && !strings.Contains(o.Reason, st.Reason) {
			return fmt.Errorf("%v because of %q, want %q", o.Kind, o.Reason, st.Reason)
		}
		if n++; n == want {
			break
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(st.Expect) {
		return fmt.Errorf("%v, want %v", got, st.Expect)
	}
	return nil
}

func (r *run) watch(name string, s *rdsd.Socket) {
	events := s.WatchCongestion(r.ctx)
	c := make(chan rdsd.CongestionChange, 1024)
	r.events[name] = c
	go func() { // ends with the scenario's sockets
		for ev, err := range events {
			if err != nil {
				return
			}
			for _, ch := range ev.Changes {
				c <- ch
			}
		}
	}()
}

func (r *run) event(ctx context.Context, st *step) error {
	want := rdsd.CongestionChange{Addr: r.addr(st.To), Congested: st.Congested}
	var seen []rdsd.CongestionChange
	for {
		select {
		case ch := <-r.events[st.On]:
			if ch == want {
				return nil
			}
			seen = append(seen, ch)
		case <-ctx.Done():
			return fmt.Errorf("no such event; seen: %v", seen)
		}
	}
}
