package volume

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rtrs"
	"github.com/rdsd/rdsd/transport"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// TestConnectionsAreCharged: each connection of a session is charged to the peer while it lives, and
// one that there is no memory for is refused, which its administrator is told.
func TestConnectionsAreCharged(t *testing.T) {
	port := freePort(t)
	n := newServerNode(t, port)
	n.memory = quota.New(256<<20, nil)
	srv, cli := n.start(), newClientNode(t, port).start()
	used := func() int64 { return n.memory.Kinds()[quota.Peers].Used }
	mustExport(t, srv, memory("one", 1<<20))
	m := mustMap(t, cli, MapSpec{Node: n.node(), Name: "one"})
	if got := used(); got != 2*(connBytes+rtrs.ConPlaceBytes)+srv.srv.pathBytes+openBytes {
		t.Errorf("two connections are charged with %d bytes", got)
	}
	if err := cli.Unmap(context.Background(), m.ID, true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nothing is charged", func() bool { return used() == 0 })

	events, stop := srv.Watch(FromNow)
	defer stop()
	other := n.memory.Account(quota.Holder{UID: 1, User: true})
	other.Grow(quota.Clients, n.memory.Limit())
	_, err := cli.Map(context.Background(), MapSpec{Node: n.node(), Name: "one"})
	if err == nil || !strings.Contains(err.Error(), "memory") {
		t.Errorf("without memory: %v", err)
	}
	other.Give(quota.Clients, n.memory.Limit())
	for e := range events {
		if e.Kind == EventSession && e.State == "refused" {
			if !strings.Contains(e.Text, "no memory") || e.Err == nil || e.Role != RoleServer {
				t.Errorf("the administrator is told %+v", e)
			}
			break
		}
	}
	if got := used(); got != 0 {
		t.Errorf("after the refusal %d bytes are charged", got)
	}
	mustMap(t, cli, MapSpec{Node: n.node(), Name: "one"})
}

// TestPathsAreCharged: each path of a session is charged with its keys, as long as it is there.
func TestPathsAreCharged(t *testing.T) {
	port := freePort(t)
	n := newServerNode(t, port)
	n.memory = quota.New(256<<20, nil)
	srv, cli := n.start(), newClientNode(t, port).start()
	used := func() int64 { return n.memory.Kinds()[quota.Peers].Used }
	mustExport(t, srv, memory("one", 1<<20))
	m := mustMap(t, cli, MapSpec{Node: n.node(), Name: "one", Paths: n.twoPaths()})
	path := 2*(connBytes+rtrs.ConPlaceBytes) + srv.srv.pathBytes
	if most := pathMemory(srv.srv.geo.QueueDepth, false); srv.srv.pathBytes > most || srv.srv.pathBytes < most/8 {
		t.Errorf("a path is charged with %d bytes, and %d with keys of its own", srv.srv.pathBytes, most)
	}
	eventually(t, "two paths are charged", func() bool { return used() == 2*path+openBytes })
	if err := cli.RemovePath(testCtx(t), m.SessionID, n.twoPaths()[0]); err != nil {
		t.Fatal(err)
	}
	eventually(t, "one path is charged", func() bool { return used() == path+openBytes })
	if err := cli.Unmap(context.Background(), m.ID, true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nothing is charged", func() bool { return used() == 0 })
}

// asksFor is a request to connect that is not made when it is accepted.
type asksFor struct {
	private []byte
	came    func()
	why     error  // what Accept returns; nil: io.EOF
	refused []byte // what Reject showed
}

func (a *asksFor) Private() []byte            { return a.private }
func (a *asksFor) LocalAddr() netip.AddrPort  { return netip.MustParseAddrPort("127.0.0.1:1234") }
func (a *asksFor) RemoteAddr() netip.AddrPort { return netip.MustParseAddrPort("127.0.0.1:5678") }
func (a *asksFor) Reject(private []byte)      { a.refused = private }
func (a *asksFor) Accept(transport.Domain, transport.LinkAttr, []byte) (transport.OneSided, error) {
	a.came()
	if a.why != nil {
		return nil, a.why
	}
	return nil, io.EOF
}

// TestRefusedWithoutALink: a peer that RTRS would take, and whose link cannot be made, hears why.
func TestRefusedWithoutALink(t *testing.T) {
	srv := newServerNode(t, freePort(t)).start()
	r := rtrswire.ConnReq{Conns: 1, Attempt: 1, FirstConn: true, Session: [16]byte{1}, Path: [16]byte{2}}
	a := &asksFor{private: r.Append(nil), came: func() {}, why: rdserr.ErrNoMemory}
	srv.srv.accept(&srv.transports[0], a)
	if rsp, err := rtrswire.ParseConnRsp(a.refused); err != nil || rsp.Errno() != uint16(syscall.ENOMEM) {
		t.Errorf("it hears %x (%v), want ENOMEM", a.refused, err)
	}
}

// TestAnnouncedConnectionsAreCharged: what a path takes for the connections that it announces is charged
// with its first one.
func TestAnnouncedConnectionsAreCharged(t *testing.T) {
	n := newServerNode(t, freePort(t))
	n.memory = quota.New(256<<20, nil)
	srv := n.start()
	used := func() int64 { return n.memory.Kinds()[quota.Peers].Used }
	for _, conns := range []uint16{1, rtrswire.MaxConns} {
		r := rtrswire.ConnReq{Conns: conns, Attempt: 1, FirstConn: true, Session: [16]byte{1}, Path: [16]byte{2}}
		var charged int64
		srv.srv.accept(&srv.transports[0], &asksFor{private: r.Append(nil), came: func() { charged = used() }})
		if want := connBytes + srv.srv.pathBytes + int64(conns)*rtrs.ConPlaceBytes; charged != want {
			t.Errorf("%d connections announced: %d bytes are charged, want %d", conns, charged, want)
		}
		eventually(t, "nothing is charged", func() bool { return used() == 0 })
	}
}

// TestWhatAKeyTakes: the memory that a path is charged with is what its keys take.
func TestWhatAKeyTakes(t *testing.T) {
	if n := unsafe.Sizeof(rtrswire.Desc{}); n != rtrswire.DescLen {
		t.Errorf("a description has %d bytes here, and %d on the wire", n, rtrswire.DescLen)
	}
	const paths, depth = 64, 512
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	var domains [paths]*transport.Regions
	chunk := make([]byte, 4096)
	before := heap()
	for i := range domains {
		domains[i] = transport.NewRegions([32]byte{})
		for range depth {
			domains[i].Register(chunk)
		}
	}
	each := (heap() - before) / (paths * depth)
	if each > keyBytes || each < keyBytes/2 {
		t.Errorf("a key takes %d bytes; %d are charged", each, keyBytes)
	}
	runtime.KeepAlive(&domains)
}

// TestRoomIsMadeForAConnection: where others hold all the memory but what peers leave to them, who
// rests makes room for a connection of a session, and what he held is all that it takes. Who holds
// much has nobody make room, and where nobody rests it is refused.
func TestRoomIsMadeForAConnection(t *testing.T) {
	n := newServerNode(t, freePort(t))
	n.memory = quota.New(256<<20, nil)
	rests, asked := false, 0
	resting := n.memory.Account(quota.Peer(netip.MustParseAddr("10.0.0.1")))
	n.evict = func() bool {
		if asked++; rests {
			resting.Give(quota.Peers, connBytes)
		}
		return rests
	}
	srv := n.start().srv
	resting.Grow(quota.Peers, connBytes)
	n.memory.Account(quota.User(1)).Grow(quota.Clients, n.memory.Limit()-connBytes)
	peer := n.memory.Account(quota.Peer(netip.MustParseAddr("10.0.0.2")))
	if err := srv.charge(peer, connBytes); !errors.Is(err, rdserr.ErrNoMemory) || asked != 1 || peer.Used() != 0 {
		t.Errorf("nobody rests: %v after %d questions, %d bytes are charged", err, asked, peer.Used())
	}
	rests = true
	peer.Hold(littleBytes + 1)
	if err := srv.charge(peer, connBytes); !errors.Is(err, rdserr.ErrNoMemory) || asked != 1 {
		t.Errorf("for a peer with much: %v after %d questions", err, asked)
	}
	peer.Hold(-1)
	if err := srv.charge(peer, connBytes); err != nil || asked != 2 || n.memory.Used() != n.memory.Limit() {
		t.Errorf("one rests: %v after %d questions, %d bytes are held of %d", err, asked, n.memory.Used(), n.memory.Limit())
	}
}

// TestRoomThatIsMadeIsNotTaken: a connection that needs more than one who rests gives back comes up also where
// a stranger takes all that is free before the next one is asked. Where there is not enough nothing stays charged,
// and no more of them are forgotten than would give twice what is wanted.
func TestRoomThatIsMadeIsNotTaken(t *testing.T) {
	const wanted = 3*restBytes + connBytes
	n := newServerNode(t, freePort(t))
	n.memory = quota.New(256<<20, nil)
	resting, stranger := n.memory.Account(quota.Peer(netip.MustParseAddr("10.0.0.1"))), n.memory.Account(quota.Peer(netip.MustParseAddr("10.0.0.3")))
	asked, rest := 0, 100
	n.evict = func() bool {
		stranger.Grow(quota.Peers, n.memory.Limit()-n.memory.Used())
		if asked++; asked > rest {
			return false
		}
		resting.Give(quota.Peers, restBytes)
		return true
	}
	srv := n.start().srv
	resting.Grow(quota.Peers, int64(rest)*restBytes)
	n.memory.Account(quota.User(1)).Grow(quota.Clients, n.memory.Limit()-n.memory.Used())
	peer := n.memory.Account(quota.Peer(netip.MustParseAddr("10.0.0.2")))
	if err := srv.charge(peer, wanted); err != nil || peer.Used() != wanted || asked != 4 {
		t.Errorf("%v after %d questions, %d bytes are charged of %d", err, asked, peer.Used(), wanted)
	}
	asked, rest = 0, 2
	if err := srv.charge(peer, wanted); !errors.Is(err, rdserr.ErrNoMemory) || peer.Used() != wanted || asked != 3 {
		t.Errorf("two rest: %v after %d questions, %d bytes are charged, %d before", err, asked, peer.Used(), wanted)
	}
	asked = 0
	srv.h.evict = func() bool { asked++; return true } // who gave nothing back
	stranger.Grow(quota.Peers, n.memory.Limit()-n.memory.Used())
	if err := srv.charge(peer, wanted); !errors.Is(err, rdserr.ErrNoMemory) || peer.Used() != wanted || asked != 2*(1+wanted/restBytes) {
		t.Errorf("nothing is given back: %v after %d questions, %d bytes are charged, %d before", err, asked, peer.Used(), wanted)
	}
}
