package volume

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestWaitPath: what is begun about a path is waited for until it is done, has failed, or the
// caller gives up.
func TestWaitPath(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	mustExport(t, server.h, memory("disk", 1<<20))
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk"})
	h, ctx := client.h, testCtx(t)
	second := PathSpec{Src: "127.0.0.1", Dst: "127.0.0.3"}
	state := func() string {
		for _, p := range h.Paths() {
			if p.names(second) {
				return p.State
			}
		}
		return ""
	}
	for _, c := range []struct {
		what, until string
		begin       func() error
	}{
		{"added", PathConnected, func() error { _, err := h.AddPath(ctx, m.Session, second); return err }},
		{"connected again", PathConnected, func() error { return h.ReconnectPath(ctx, m.Session, second) }},
		{"disconnected", PathDisconnected, func() error { return h.DisconnectPath(ctx, m.Session, second) }},
		{"connected", PathConnected, func() error { return h.ReconnectPath(ctx, m.Session, second) }},
		{"removed", PathRemoved, func() error { return h.RemovePath(ctx, m.Session, second) }},
	} {
		if err := c.begin(); err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		if err := h.WaitPath(ctx, m.Session, second, c.until); err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		if is := state(); is != c.until && !(c.until == PathRemoved && is == "") {
			t.Fatalf("%s: the path is %q", c.what, is)
		}
	}

	// Nobody is there: the reason is told. Nobody answers: the caller gives up.
	nobody := PathSpec{Src: "127.0.0.1", Dst: "127.0.0.9"}
	if _, err := h.AddPath(ctx, m.Session, nobody); err != nil {
		t.Fatal(err)
	}
	if err := h.WaitPath(ctx, m.Session, nobody, PathConnected); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("where nobody is: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if err := h.WaitPath(short, m.Session, PathSpec{Dst: "127.0.0.2"}, PathDisconnected); !errors.Is(err, syscall.ECANCELED) {
		t.Errorf("connected for good: %v", err)
	}
	if err := h.WaitPath(short, m.Session, PathSpec{Dst: "127.0.0.2"}, PathRemoved); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("what does not happen: %v", err)
	}
	if err := h.WaitPath(ctx, "nobody", second, PathConnected); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("of nobody: %v", err)
	}
	given, giveUp := context.WithCancel(ctx)
	giveUp()
	if err := h.WaitPath(given, m.Session, PathSpec{Dst: "127.0.0.2"}, PathRemoved); !errors.Is(err, syscall.ECANCELED) {
		t.Errorf("given up: %v", err)
	}
	if _, err := h.AddPath(ctx, m.Session, second); err != nil {
		t.Fatal(err)
	}
	if err := h.WaitPath(ctx, m.Session, second, PathConnected); err != nil {
		t.Fatal(err)
	}
	if err := h.DisconnectPath(ctx, m.Session, second); err != nil {
		t.Fatal(err)
	}
	if err := h.WaitPath(ctx, m.Session, second, PathConnected); !errors.Is(err, syscall.ECANCELED) {
		t.Errorf("a path that was disconnected is waited for: %v", err)
	}

	// The server's end of a path, which may be gone as soon as it is disconnected.
	theirs := func() (src, id string) {
		for _, p := range server.h.Paths() {
			if strings.HasPrefix(p.Dst, "127.0.0.2:") {
				src, id = p.Src, p.SessionID
			}
		}
		return src, id
	}
	src, id := theirs()
	for _, session := range []string{m.Session, id} {
		for _, state := range []string{PathDisconnected, PathRemoved} {
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			if err := server.h.WaitPath(short, session, PathSpec{Dst: "127.0.0.2"}, state); !errors.Is(err, syscall.ETIMEDOUT) {
				t.Errorf("a path of session %s that is there is %s: %v", session, state, err)
			}
			cancel()
			if err := server.h.WaitPath(ctx, session, PathSpec{Dst: "127.0.0.9"}, state); err != nil {
				t.Errorf("a path of session %s that never was is not %s: %v", session, state, err)
			}
			if err := server.h.WaitPath(ctx, session+"x", PathSpec{Dst: "127.0.0.2"}, state); err != nil {
				t.Errorf("a path of no session is not %s: %v", state, err)
			}
		}
	}
	if err := server.h.DisconnectPath(ctx, m.Session, PathSpec{Dst: "127.0.0.2"}); err != nil {
		t.Fatal(err)
	}
	if err := server.h.WaitPath(ctx, m.Session, PathSpec{Src: src, Dst: "127.0.0.2"}, PathConnected); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("a server's path cannot be connected: %v", err)
	}
}

// names tells whether a path is the one that p names.
func (i *PathInfo) names(p PathSpec) bool {
	src, err1 := netip.ParseAddrPort(i.Src)
	dst, err2 := netip.ParseAddrPort(i.Dst)
	if err1 != nil { // the address alone, without a link
		src = netip.AddrPortFrom(netip.MustParseAddr(i.Src), 0)
	}
	return err2 == nil && matches(p.Src, src) && matches(p.Dst, dst)
}

// TestTransportsWithDevices: a path over a transport with devices takes the device of its own
// address; without one the error says where there are some.
func TestTransportsWithDevices(t *testing.T) {
	n := newClientNode(t, freePort(t))
	n.start()
	n.h.transports = append(n.h.transports, Transport{Name: TransportIB, Provider: n.h.transports[0].Provider,
		Devices: map[netip.Addr]string{clientAddrs[0]: "a", serverAddrs[1]: "b"}})
	for src, want := range map[string]string{"127.0.0.1": "a", "127.0.0.3": "b", "": "a"} {
		e, err := n.h.resolve(testCtx(t), PathSpec{Src: src, Dst: "127.0.0.2", Transport: TransportIB})
		if err != nil {
			t.Errorf("from %q: %v", src, err)
			continue
		}
		if name, port := e.via.device(e.local.Addr()); name != want || port != 1 {
			t.Errorf("from %q: device %s, port %d; want %s", src, name, port, want)
		}
	}
	_, err := n.h.resolve(testCtx(t), PathSpec{Src: "127.0.0.5", Dst: "127.0.0.2", Transport: TransportIB})
	is(t, "from an address without a device", err, syscall.EINVAL, "devices at 127.0.0.1, 127.0.0.3")
	n.h.transports = n.h.transports[:1]
	_, err = n.h.resolve(testCtx(t), PathSpec{Dst: "127.0.0.2", Transport: TransportIB})
	is(t, "without devices", err, syscall.ENOSYS, "volumes.rdma")
}
