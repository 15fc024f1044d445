package volume

import (
	"bytes"
	"errors"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/transport"
)

// liar is a server that answers reads with success and does with the data what how
// says; nil: it is honest. Everything else it does is right.
type liar struct {
	transport.OneSidedProvider
	how atomic.Pointer[func(post func(*transport.Op), op *transport.Op)]
}

func (l *liar) ListenOneSided(local netip.AddrPort, accept func(transport.ConnRequest)) (transport.Listener, error) {
	return l.OneSidedProvider.ListenOneSided(local, func(r transport.ConnRequest) { accept(&liarRequest{r, l}) })
}

type liarRequest struct {
	transport.ConnRequest
	l *liar
}

func (r *liarRequest) Accept(d transport.Domain, attr transport.LinkAttr, private []byte) (transport.OneSided, error) {
	k, err := r.ConnRequest.Accept(d, attr, private)
	if err != nil {
		return nil, err
	}
	return &liarLink{k, r.l}, nil
}

type liarLink struct {
	transport.OneSided
	l *liar
}

func (k *liarLink) Post(op *transport.Op) {
	how := k.l.how.Load()
	if op.Kind != transport.OpWrite || how == nil {
		k.OneSided.Post(op)
		return
	}
	(*how)(k.OneSided.Post, op)
}

// TestLyingServer: a server answers reads with success and has not written all that
// was asked for. The buffers that read into held what others had read before: no
// byte of that is shown, every such read fails with EIO, and honest ones go on.
func TestLyingServer(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	l := &liar{}
	server.links = func(p transport.OneSidedProvider) transport.OneSidedProvider {
		l.OneSidedProvider = p
		return l
	}
	server.start()
	client.start()
	const size = 1 << 20
	mustExport(t, server.h, memory("secret", size))
	mustExport(t, server.h, memory("lied", size))
	secret := open(t, mustMap(t, client.h, MapSpec{Node: server.node(), Name: "secret"}))
	lied := open(t, mustMap(t, client.h, MapSpec{Node: server.node(), Name: "lied"}))
	if _, err := secret.WriteAt(bytes.Repeat([]byte("secret! "), size/8), 0); err != nil {
		t.Fatal(err)
	}
	part := func(op *transport.Op, from, to int) *transport.Op {
		o := *op
		o.Data, o.Addr = op.Data[from:to], op.Addr+uint64(from)
		return &o
	}
	type post = func(*transport.Op)
	for name, how := range map[string]func(post post, op *transport.Op){
		"nothing":                func(post, *transport.Op) {},
		"all but the last byte":  func(p post, op *transport.Op) { p(part(op, 0, len(op.Data)-1)) },
		"all but the first byte": func(p post, op *transport.Op) { p(part(op, 1, len(op.Data))) },
		"the first half twice": func(p post, op *transport.Op) {
			p(part(op, 0, len(op.Data)/2))
			p(part(op, 0, len(op.Data)/2))
		},
		"all but a byte in the middle": func(p post, op *transport.Op) {
			p(part(op, 0, len(op.Data)/2))
			p(part(op, len(op.Data)/2+1, len(op.Data)))
		},
	} {
		for _, n := range []int{512, 4096, 64 << 10, 512 << 10} { // the last in pieces
			spread(t, secret, n)
			l.how.Store(&how)
			got := make([]byte, n)
			_, err := lied.ReadAt(got, 0)
			l.how.Store(nil)
			if !errors.Is(err, syscall.EIO) {
				t.Errorf("%s of %d bytes: %v", name, n, err)
			}
			if bytes.Contains(got, []byte("secret")) {
				t.Errorf("%s of %d bytes: bytes of another volume are shown", name, n)
			}
			if _, err := lied.ReadAt(got, 0); err != nil || !bytes.Equal(got, make([]byte, n)) {
				t.Fatalf("an honest read after %s: %v", name, err)
			}
		}
	}
	halves := func(p post, op *transport.Op) { // honest, though in pieces
		p(part(op, 0, len(op.Data)/3))
		p(part(op, len(op.Data)/3, len(op.Data)))
	}
	l.how.Store(&halves)
	got := make([]byte, 64<<10)
	if _, err := secret.ReadAt(got, 0); err != nil || !bytes.HasPrefix(got, []byte("secret! secret! ")) {
		t.Errorf("an honest read in pieces: %v, %q", err, got[:16])
	}
	l.how.Store(nil)
}

// spread fills buffers that later reads of n bytes use with what is not theirs.
func spread(t *testing.T, c *nbd.Client, n int) {
	t.Helper()
	for range 4 {
		if _, err := c.ReadAt(make([]byte, n), 0); err != nil {
			t.Fatal(err)
		}
	}
}
