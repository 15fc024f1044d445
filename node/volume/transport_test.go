package volume

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/rtrs"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/tcp"
)

// verbs makes TCP's links what those of an RDMA device are: the end of a key is Pending and
// told on the thread that reads, where a write went and how much was written is not told, and
// memory is adopted, stays, and cannot be guarded.
type verbs struct {
	*tcp.Provider
	refuse            error // of Adopt
	adopted, released atomic.Int32
	revoked, nowhere  atomic.Int32 // ends of keys that were told, writes without a place
	asked             atomic.Int32 // links that were asked for without saying what for
}

func (d *verbs) OneSidedCaps() transport.OneSidedCaps {
	return transport.OneSidedCaps{SecretKeys: true, Faults: true, PeerRevokes: true, Pinned: true}
}

func (d *verbs) Adopt([]byte) (func(), error) {
	if d.refuse != nil {
		return nil, d.refuse
	}
	d.adopted.Add(1)
	return func() { d.released.Add(1) }, nil
}

func (d *verbs) NewDomain() transport.Domain {
	return &deviceDomain{dev: d, of: d.Provider.NewDomain().(*tcp.Domain)}
}

func (d *verbs) NewDomainOn(*reactor.Reactor) (transport.Domain, error) {
	return nil, errors.New("a device has a thread of its own")
}

func (d *verbs) DialOneSided(ctx context.Context, local, remote netip.AddrPort, dom transport.Domain, attr transport.LinkAttr, private []byte) (transport.OneSided, []byte, error) {
	if attr.Sends == 0 || attr.Recvs == 0 {
		d.asked.Add(1)
	}
	x := dom.(*deviceDomain)
	l, rsp, err := d.Provider.DialOneSided(ctx, local, remote, x.of, attr, private)
	if err != nil {
		return nil, nil, err
	}
	return &deviceLink{OneSided: l, dom: x}, append(rsp, 0, 0, 0), nil // zeros behind, as in a REP
}

func (d *verbs) ListenOneSided(local netip.AddrPort, accept func(transport.ConnRequest)) (transport.Listener, error) {
	return d.Provider.ListenOneSided(local, func(q transport.ConnRequest) { accept(&deviceRequest{q, d}) })
}

type deviceRequest struct {
	transport.ConnRequest
	d *verbs
}

func (q *deviceRequest) Private() []byte {
	return append(slices.Clone(q.ConnRequest.Private()), 0, 0, 0)
}

func (q *deviceRequest) Accept(dom transport.Domain, attr transport.LinkAttr, private []byte) (transport.OneSided, error) {
	if attr.Sends == 0 || attr.Recvs == 0 {
		q.d.asked.Add(1)
	}
	x, ok := dom.(*deviceDomain)
	if !ok {
		return nil, fmt.Errorf("a domain of type %T is another provider's", dom)
	}
	l, err := q.ConnRequest.Accept(x.of, attr, private)
	if err != nil {
		return nil, err
	}
	return &deviceLink{OneSided: l, dom: x}, nil
}

type deviceDomain struct {
	dev *verbs
	of  *tcp.Domain

	mu    sync.Mutex
	links []*deviceLink // that have said no Closed; guarded by mu
}

func (x *deviceDomain) Register(p []byte) (uint32, uint64) { return x.of.Register(p) }
func (x *deviceDomain) Close()                             { x.of.Close() }

func (x *deviceDomain) Revoke(key uint32) transport.Revocation {
	_, how := x.Take(key)
	return how
}

func (x *deviceDomain) Take(key uint32) (int, transport.Revocation) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.links) == 0 {
		x.of.Revoke(key)
		return transport.Unfilled, transport.Idle
	}
	x.of.Reactor().Do(func() { x.end(key) })
	return transport.Unfilled, transport.Pending
}

// end ends key, on the thread that reads the links, and has one of them tell.
func (x *deviceDomain) end(key uint32) {
	how := x.of.Revoke(key)
	x.mu.Lock()
	var l *deviceLink
	if len(x.links) > 0 {
		l = x.links[0]
	}
	x.mu.Unlock()
	if l == nil || how != transport.Idle {
		return
	}
	x.dev.revoked.Add(1)
	l.h.Begin()
	err := l.h.Revoked(key, transport.Unfilled)
	l.h.End()
	if err != nil {
		l.Close()
	}
}

type deviceLink struct {
	transport.OneSided
	dom *deviceDomain
	h   transport.OneSidedHandler
}

func (l *deviceLink) Start(h transport.OneSidedHandler, recvBytes int) {
	l.h = h
	l.dom.mu.Lock()
	l.dom.links = append(l.dom.links, l)
	l.dom.mu.Unlock()
	l.OneSided.Start(&deviceHandler{h, l, recvBytes}, recvBytes)
}

type deviceHandler struct {
	transport.OneSidedHandler
	l         *deviceLink
	recvBytes int
}

func (h *deviceHandler) Written(w transport.Placed) error {
	h.l.dom.dev.nowhere.Add(1)
	return h.OneSidedHandler.Written(transport.Placed{N: w.N, Imm: w.Imm})
}

// Received ends the link, as a device does whose receive is too short.
func (h *deviceHandler) Received(data []byte, imm uint32, hasImm bool) error {
	if len(data) > h.recvBytes {
		return fmt.Errorf("a message of %d bytes came for %d", len(data), h.recvBytes)
	}
	return h.OneSidedHandler.Received(data, imm, hasImm)
}

func (h *deviceHandler) Invalidated(key uint32, _ int) error {
	return h.OneSidedHandler.Invalidated(key, transport.Unfilled)
}

func (h *deviceHandler) Closed(err error) {
	x := h.l.dom
	x.mu.Lock()
	x.links = slices.DeleteFunc(x.links, func(l *deviceLink) bool { return l == h.l })
	x.mu.Unlock()
	h.OneSidedHandler.Closed(err)
}

// withDevice gives n a device beside TCP, on port.
func (n *testNode) withDevice(port uint16) *verbs {
	r, err := reactor.New(reactor.Options{CPU: -1, SpinFor: -1, Name: n.cfg.Name + " device"})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { r.Close() }) // after the host
	d := &verbs{Provider: tcp.New(r)}
	n.others = append(n.others, Transport{Name: "dev", Provider: d, Port: port})
	return d
}

// TestSessionOverTwoTransports: a session has a path over TCP and one over a device. Under
// traffic its requests move from the one to the other and back, by faults and by an
// administrator, and nothing is lost.
func TestSessionOverTwoTransports(t *testing.T) {
	port, other := freePort(t), freePort(t)
	server, mapper := newServerNode(t, port), newClientNode(t, port)
	server.memory = quota.New(512<<20, nil)
	sd, cd := server.withDevice(other), mapper.withDevice(other)
	server.start()
	a := newProxy(t, "127.0.0.4:0", fmt.Sprintf("127.0.0.2:%d", port))
	b := newProxy(t, "127.0.0.5:0", fmt.Sprintf("127.0.0.2:%d", other))
	mapper.start()
	mustExport(t, server.h, file(t, "disk", 8<<20))
	m := mustMap(t, mapper.h, MapSpec{Node: "127.0.0.4", Name: "disk", Persist: true, Policy: rtrs.RoundRobin.String(),
		Paths: []PathSpec{{Dst: a.addr(), Transport: "tcp"}, {Dst: b.addr(), Transport: "dev"}}})
	up := func() int {
		i, _ := mapper.h.Mapping(m.ID)
		return i.PathsUp
	}
	eventually(t, "two paths", func() bool { return up() == 2 })
	x := startTraffic(t, open(t, m))
	x.progress(t, 50)
	for i := range 8 {
		p := []*proxy{a, b}[i%2]
		if i%4 < 2 {
			p.set(true, false) // away for a while
			x.progress(t, 20)
			p.set(false, false)
		} else {
			p.cut()
		}
		eventually(t, "two paths", func() bool { return up() == 2 })
		x.progress(t, 20)
	}
	// One of them alone, by name: they may lead to one address.
	for _, name := range []string{"dev", "tcp"} {
		one := PathSpec{Transport: name}
		if err := mapper.h.DisconnectPath(t.Context(), m.Session, one); err != nil {
			t.Fatal(err)
		}
		eventually(t, "one path", func() bool { return up() == 1 })
		x.progress(t, 20)
		if err := mapper.h.ReconnectPath(t.Context(), m.Session, one); err != nil {
			t.Fatal(err)
		}
		eventually(t, "two paths", func() bool { return up() == 2 })
	}
	x.end(t)
	failovers := map[string]uint64{}
	for _, p := range mapper.h.Paths() {
		failovers[p.Transport] += p.Failovers
		if p.Reads == 0 || p.Writes == 0 {
			t.Errorf("path %v has %d reads and %d writes", p.PathSpec, p.Reads, p.Writes)
		}
	}
	if failovers[""] == 0 || failovers["dev"] == 0 || len(failovers) != 2 {
		t.Errorf("failovers by transport: %v", failovers)
	}
	for name, d := range map[string]*verbs{"server": sd, "client": cd} {
		if d.revoked.Load() == 0 || d.nowhere.Load() == 0 || d.asked.Load() != 0 {
			t.Errorf("%s: %d ends of keys, %d writes without a place, %d links for nothing", name, d.revoked.Load(), d.nowhere.Load(), d.asked.Load())
		}
	}
	// A device keeps the chunks of the session, all of them: they are charged for, and it has
	// adopted them once, however often its path was connected. (A former session may have
	// ended, when both paths were cut at a time.)
	whole := int64(len((*server.h.srv.pages.Load())[0].mem))
	eventually(t, "one session's chunks are adopted and charged", func() bool {
		return sd.adopted.Load()-sd.released.Load() == 1 && server.memory.Kinds()[quota.Chunks].Used == whole
	})
	if cd.adopted.Load() != 0 {
		t.Errorf("a client has adopted %d chunks", cd.adopted.Load())
	}
	// The mapping remembers what its paths are made of.
	mapper.crash()
	mapper.start()
	eventually(t, "two paths again", func() bool { return up() == 2 })
	var kinds []string
	for _, p := range mapper.h.Paths() {
		kinds = append(kinds, p.Transport)
	}
	if slices.Sort(kinds); !slices.Equal(kinds, []string{"", "dev"}) {
		t.Errorf("after a restart the paths are over %q", kinds)
	}
	// Of two paths between the same ends, the one that is named goes.
	if err := mapper.h.RemovePath(t.Context(), m.Session, PathSpec{Transport: "dev"}); err != nil {
		t.Fatal(err)
	}
	// It is gone when the last request on it is, of which there may be some after a start.
	eventually(t, "the other path alone", func() bool {
		l := mapper.h.Paths()
		return len(l) == 1 && l[0].Transport == ""
	})
	mapper.stop()
	eventually(t, "the chunks are given back", func() bool {
		return sd.released.Load() == sd.adopted.Load() && server.memory.Kinds()[quota.Chunks].Used == 0
	})
}

// TestDeviceWithoutRoom: a path is refused whose device cannot have the chunks of the
// session, or whose session cannot be charged for all of them; the same session is there over
// TCP.
func TestDeviceWithoutRoom(t *testing.T) {
	for name, set := range map[string]func(n *testNode, d *verbs){
		"of the device":  func(n *testNode, d *verbs) { d.refuse = syscall.ENOMEM },
		"in the account": func(n *testNode, d *verbs) { n.memory = quota.New(64<<20, nil) }, // chunks are 130 MiB
	} {
		t.Run(name, func(t *testing.T) {
			port, other := freePort(t), freePort(t)
			server, mapper := newServerNode(t, port), newClientNode(t, port)
			d := server.withDevice(other)
			set(server, d)
			mapper.withDevice(other)
			server.start()
			mapper.start()
			mustExport(t, server.h, file(t, "disk", 1<<20))
			_, err := mapper.h.Map(t.Context(), MapSpec{Node: server.node(), Name: "disk", Session: "first", Paths: []PathSpec{{Dst: "127.0.0.2", Transport: "dev"}}})
			if !errors.Is(err, syscall.ENOMEM) {
				t.Errorf("over the device: %v", err)
			}
			mustMap(t, mapper.h, MapSpec{Node: server.node(), Name: "disk", Session: "second"})
			if d.adopted.Load() != d.released.Load() {
				t.Errorf("adopted %d, released %d", d.adopted.Load(), d.released.Load())
			}
		})
	}
}

// TestUnknownTransport: a path over a transport that this node has not is a mistake of who
// asks, and the answer says what there is.
func TestUnknownTransport(t *testing.T) {
	port := freePort(t)
	mapper := newClientNode(t, port)
	mapper.withDevice(freePort(t))
	mapper.start()
	_, err := mapper.h.Map(t.Context(), MapSpec{Node: "127.0.0.2", Name: "disk", Paths: []PathSpec{{Dst: "127.0.0.2", Transport: "smoke"}}})
	is(t, "map", err, syscall.EINVAL, "this node has tcp, dev")
}
