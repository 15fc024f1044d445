package volume

import (
	"testing"

	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/tcp"
)

// What the shell asks a provider for with a type assertion, TCP's has: without the one a
// peer's writes are charged to nobody, without the other a thread more is on the way.
var (
	_ transport.Guarded = (*tcp.Domain)(nil)
	_ homes             = (*tcp.Provider)(nil)
)

// TestServersDomainsAreGuarded: what a peer writes into a session's chunks is charged to it
// before it is there, asked for or not.
func TestServersDomainsAreGuarded(t *testing.T) {
	port := freePort(t)
	server, mapper := newServerNode(t, port), newClientNode(t, port)
	server.memory = quota.New(256<<20, nil)
	server.start()
	mapper.start()
	mustExport(t, server.h, file(t, "disk", 1<<20))
	mustMap(t, mapper.h, MapSpec{Node: server.node(), Name: "disk"})
	used := func() int64 { return server.memory.Kinds()[quota.Chunks].Used }
	before := used()
	// The last chunks of the session, which no request of this mapping has used, written by
	// the client's link with a key for them.
	const n = 256 << 10
	pages := *server.h.srv.pages.Load()
	mem := pages[0].mem[len(pages[0].mem)-n:]
	key, addr := aLife(t, &server.h.srv.shell).domain.Register(mem)
	var c *client
	mapper.h.mu.Lock()
	for _, c = range mapper.h.clients {
	}
	mapper.h.mu.Unlock()
	f := aLife(t, &c.shell)
	l := f.links[len(f.links)-1].l
	for off := 0; off < n; off += 64 << 10 {
		l.Post(&transport.Op{Kind: transport.OpWrite, Key: key, Addr: addr + uint64(off), Data: make([]byte, 64<<10)})
	}
	l.Flush()
	eventually(t, "the pages are charged", func() bool { return used() >= before+n })
}

// aLife is one of a shell's lives with links.
func aLife(t *testing.T, sh *shell) *life {
	t.Helper()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for f := range sh.lives {
		if len(f.links) > 1 {
			return f
		}
	}
	t.Fatal("no life of a path has links")
	return nil
}
