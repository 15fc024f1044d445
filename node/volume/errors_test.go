package volume

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/tcp"
)

// is fails the test unless err has the errno and says why.
func is(t *testing.T, what string, err error, errno syscall.Errno, says string) {
	t.Helper()
	if !errors.Is(err, errno) || !strings.Contains(err.Error(), says) {
		t.Errorf("%s: %v; want %v, with %q", what, err, errno, says)
	}
}

func TestWrongInputIsRefused(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	ctx := testCtx(t)
	s, c := server.h, client.h
	dir := t.TempDir()
	empty, link := filepath.Join(dir, "empty"), filepath.Join(dir, "pipe")
	os.WriteFile(empty, nil, 0o600)
	syscall.Mkfifo(link, 0o600)
	ro := file(t, "ro", 1<<20)
	ro.ReadOnly = true
	mustExport(t, s, ro)
	mustExport(t, s, memory("mem", 1<<20))
	noState := newClientNode(t, port)
	noState.cfg.StateDir = ""
	noState.start()

	_, err := New(Config{Policy: "x"}, Deps{Provider: s.transports[0].Provider})
	is(t, "New", err, syscall.EINVAL, "volumes.policy")
	_, err = New(Config{}, Deps{})
	is(t, "New without links", err, syscall.EINVAL, "no provider")
	_, err = New(Config{}, Deps{Provider: s.transports[0].Provider, Others: []Transport{{Name: "ib"}}})
	is(t, "New without links of a transport", err, syscall.EINVAL, "no provider")
	_, err = New(Config{}, Deps{Provider: s.transports[0].Provider, Others: s.transports})
	is(t, "New with a transport twice", err, syscall.EINVAL, "twice")

	export := func(x ExportSpec) error { _, err := s.Export(ctx, x); return err }
	is(t, "export", export(ExportSpec{Name: "../x", Size: 512}), syscall.EINVAL, "..")
	is(t, "export twice", export(memory("mem", 512)), syscall.EEXIST, "already")
	is(t, "export what is not there", export(ExportSpec{Name: "a", Path: dir + "/none"}), syscall.ENOENT, "--create with --size")
	is(t, "export a directory", export(ExportSpec{Name: "a", Path: dir}), syscall.EINVAL, "directory")
	is(t, "export a pipe", export(ExportSpec{Name: "a", Path: link}), syscall.EINVAL, "regular file")
	is(t, "export an empty file", export(ExportSpec{Name: "a", Path: empty}), syscall.EINVAL, "empty")
	is(t, "export a file as a block device", export(ExportSpec{Name: "a", Path: ro.Path, Kind: KindBlock}), syscall.EINVAL, "not a block")
	is(t, "create where there is no directory", export(ExportSpec{Name: "a", Path: dir + "/no/f", Create: true, Size: 512}), syscall.ENOENT, "")
	_, err = noState.h.Export(ctx, ExportSpec{Name: "a", Path: ro.Path, Persist: true})
	is(t, "persist without a directory", err, syscall.EINVAL, "state_dir")
	is(t, "unexport", s.Unexport(ctx, "none", false), syscall.ENOENT, "no export")
	_, err = s.ResizeExport(ctx, "none", 512)
	is(t, "resize", err, syscall.ENOENT, "no export")
	_, err = s.ResizeExport(ctx, "ro", 512)
	is(t, "resize what is read-only", err, syscall.EROFS, "read-only")
	_, err = s.ResizeExport(ctx, "mem", 1000)
	is(t, "resize to half a block", err, syscall.EINVAL, "multiple")

	mapIt := func(m MapSpec) error {
		if m.Node == "" {
			m.Node = server.node()
		}
		_, err := c.Map(ctx, m)
		return err
	}
	is(t, "map", mapIt(MapSpec{Name: "mem", Access: "x"}), syscall.EINVAL, "access")
	is(t, "map what is not exported", mapIt(MapSpec{Name: "none"}), syscall.ENOENT, "")
	is(t, "map read-only for writing", mapIt(MapSpec{Name: "ro"}), syscall.EROFS, "")
	is(t, "map from nowhere", mapIt(MapSpec{Name: "mem", Node: "127.0.0.9"}), syscall.ECONNREFUSED, "127.0.0.9")
	is(t, "map over a name nobody knows", mapIt(MapSpec{Name: "mem", Node: "no.such.host.invalid"}), syscall.EHOSTUNREACH, "no.such.host.invalid")
	is(t, "map with a socket in no directory", mapIt(MapSpec{Name: "mem", Socket: dir + "/no/s"}), syscall.ENOENT, "socket")
	is(t, "map over a file", mapIt(MapSpec{Name: "mem", Socket: empty}), syscall.EEXIST, "another kind")
	is(t, "persist without a directory", func() error {
		_, err := noState.h.Map(ctx, MapSpec{Node: server.node(), Name: "mem", Persist: true})
		return err
	}(), syscall.EINVAL, "state_dir")
	is(t, "map without a place for the socket", func() error {
		_, err := noState.h.Map(ctx, MapSpec{Node: server.node(), Name: "mem"})
		return err
	}(), syscall.EINVAL, "socket_dir")
	if l := c.Mappings(); len(l) != 0 || len(c.Sessions()) != 0 {
		t.Fatalf("refused, and left: %+v, %+v", l, c.Sessions())
	}

	m := mustMap(t, c, MapSpec{Node: server.node(), Name: "mem", ID: "mine", Policy: "rr"})
	if m.ID != "mine" {
		t.Errorf("ID %s", m.ID)
	}
	is(t, "map twice", mapIt(MapSpec{Name: "mem"}), syscall.EEXIST, "as mine")
	is(t, "the same ID", mapIt(MapSpec{Name: "ro", Access: AccessRO, ID: "mine"}), syscall.EEXIST, "mine")
	is(t, "the same socket", mapIt(MapSpec{Name: "ro", Access: AccessRO, Socket: m.Socket}), syscall.EEXIST, m.Socket)
	is(t, "another policy in the session", mapIt(MapSpec{Name: "ro", Access: AccessRO, Policy: "ml"}), syscall.EINVAL, "policy")
	is(t, "another timeout in the session", mapIt(MapSpec{Name: "ro", Access: AccessRO, IOTimeout: time.Hour}), syscall.EINVAL, "I/O timeout")
	is(t, "a second writer", mapIt(MapSpec{Name: "mem", Session: "second"}), syscall.EPERM, "")
	mustMap(t, c, MapSpec{Node: server.node(), Name: "mem", Session: "third", Access: AccessRO})
	mustMap(t, c, MapSpec{Node: server.node(), Name: "mem", Session: "fourth", Access: AccessMigration})

	is(t, "unexport in use", s.Unexport(ctx, "mem", false), syscall.EBUSY, "")
	is(t, "unmap", c.Unmap(ctx, "none", false), syscall.ENOENT, "no mapping")
	is(t, "unmap nothing", c.Unmap(ctx, "", false), syscall.ENOENT, "no mapping")
	is(t, "unmap one of many", c.Unmap(ctx, server.node()+":mem", false), syscall.EINVAL, "more than one")
	_, err = c.Mapping("none")
	is(t, "mapping", err, syscall.ENOENT, "no mapping")
	_, err = c.Remap(ctx, "none")
	is(t, "remap", err, syscall.ENOENT, "no mapping")
	_, err = c.ResizeMapping(ctx, "mine", 4096)
	is(t, "resize to what the server does not say", err, syscall.EINVAL, "the server says 1048576")

	_, err = c.AddPath(ctx, "none", PathSpec{Dst: "127.0.0.3"})
	is(t, "add a path", err, syscall.ENOENT, "no session")
	_, err = c.AddPath(ctx, m.Session, PathSpec{Dst: "a b"})
	is(t, "add a path to nowhere", err, syscall.EINVAL, "destination")
	c.local = func(a netip.Addr) bool { return a.IsLoopback() }
	_, err = c.AddPath(ctx, m.Session, PathSpec{Src: "192.0.2.7", Dst: server.node()})
	is(t, "a source elsewhere", err, syscall.EADDRNOTAVAIL, "source 192.0.2.7 is not an address of this node")
	_, err = c.AddPath(ctx, m.Session, PathSpec{Dst: server.node()})
	is(t, "add a path twice", err, syscall.EEXIST, "")
	is(t, "remove the last path", c.RemovePath(ctx, m.Session, PathSpec{}), syscall.EBUSY, "last path")
	is(t, "remove a path", c.RemovePath(ctx, m.Session, PathSpec{Dst: "127.0.0.9"}), syscall.ENOENT, "no path")
	is(t, "disconnect a path", c.DisconnectPath(ctx, "none", PathSpec{}), syscall.ENOENT, "no session")
	is(t, "reconnect a path", c.ReconnectPath(ctx, "none", PathSpec{}), syscall.ENOENT, "no session")
	is(t, "policy", c.SetPolicy(ctx, m.Session, "x"), syscall.EINVAL, "policy")
	is(t, "policy of none", c.SetPolicy(ctx, "none", "rr"), syscall.ENOENT, "no session")
	is(t, "reset", c.ResetStats(ctx, "none", PathSpec{}), syscall.ENOENT, "no path")
	_, err = c.RemoteInfo(ctx, MapSpec{Node: server.node(), Name: ""})
	is(t, "info", err, syscall.EINVAL, "volume name")
	_, err = c.RemoteInfo(ctx, MapSpec{Node: server.node(), Name: "none"})
	is(t, "info of none", err, syscall.ENOENT, "")
	_, err = c.Check(ctx, "none")
	is(t, "check", err, syscall.ENOENT, "none")

	client.stop()
	_, err = c.Map(ctx, MapSpec{Node: server.node(), Name: "mem"})
	is(t, "map after the end", err, syscall.ESHUTDOWN, "")
	_, err = c.Export(ctx, memory("x", 512))
	is(t, "export after the end", err, syscall.ESHUTDOWN, "")
	is(t, "close twice", c.Close(ctx), syscall.ESHUTDOWN, "")
}

func TestLimits(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.cfg.MaxExports, client.cfg.MaxMappings = 1, 1
	server.start()
	client.start()
	mustExport(t, server.h, memory("a", 1<<20))
	_, err := server.h.Export(testCtx(t), memory("b", 1<<20))
	is(t, "one export too many", err, syscall.EMFILE, "max_exports")
	mustMap(t, client.h, MapSpec{Node: server.node(), Name: "a"})
	_, err = client.h.Map(testCtx(t), MapSpec{Node: server.node(), Name: "a", Session: "x", Access: AccessRO})
	is(t, "one mapping too many", err, syscall.EMFILE, "max_mappings")
}

func TestWhoMayOpen(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	here, elsewhere := netip.MustParsePrefix("127.0.0.1/32"), netip.MustParsePrefix("10.0.0.0/8")
	a, b, c := memory("a", 1<<20), memory("b", 1<<20), memory("c", 1<<20)
	a.Allow, b.Allow, c.Sessions = []netip.Prefix{here}, []netip.Prefix{elsewhere}, []string{"web-?"}
	mustExport(t, server.h, a)
	mustExport(t, server.h, b)
	mustExport(t, server.h, c)
	mapIt := func(name, session string) error {
		_, err := client.h.Map(testCtx(t), MapSpec{Node: server.node(), Paths: []PathSpec{{Src: "127.0.0.1", Dst: server.node()}}, Name: name, Session: session})
		return err
	}
	if err := mapIt("a", ""); err != nil {
		t.Error(err)
	}
	is(t, "from elsewhere", mapIt("b", ""), syscall.EACCES, "")
	is(t, "another session", mapIt("c", "mail-1"), syscall.EACCES, "")
	if err := mapIt("c", "web-1"); err != nil {
		t.Error(err)
	}
	server.stop()
	server.cfg.Allow = []netip.Prefix{elsewhere}
	server.cfg.Exports = []ExportSpec{a}
	server.start()
	stranger := newClientNode(t, port)
	stranger.start()
	_, err := stranger.h.Map(testCtx(t), MapSpec{Node: server.node(), Name: "a", Session: "x"})
	if err == nil {
		t.Error("mapped by who may not connect")
	}
}

// A server that accepts and never answers does not keep Map longer than asked.
func TestMapGivesUpInTime(t *testing.T) {
	client := newClientNode(t, freePort(t))
	client.start()
	p := tcp.New(client.r)
	got := make(chan transport.ConnRequest, 100)
	l, err := p.ListenOneSided(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), client.cfg.Port), func(r transport.ConnRequest) { got <- r })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err = client.h.Map(ctx, MapSpec{Node: "127.0.0.2", Name: "a"})
	is(t, "map", err, syscall.ETIMEDOUT, "in time")
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("it took %v", took)
	}
	l.Close()
	for close(got); len(got) > 0; {
		(<-got).Reject(nil)
	}
}
