package node

import (
	"net"
	"testing"
	"time"

	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/config"
)

// closing is a front of which so many refused connections wait to be closed.
type closing int

func (c closing) Closing() int { return int(c) }

// TestNobodyIsAcceptedForTheLastDescriptors: where connections that were refused have taken what clients may have,
// no client is accepted; without such ones each is, to be told why it is not served.
func TestNobodyIsAcceptedForTheLastDescriptors(t *testing.T) {
	for _, c := range []struct {
		most  int // descriptors
		waits closing
		holds bool
	}{{base.KeepOfClients, 1, true}, {base.KeepOfClients, 0, false}, {4096, 1, false}} {
		cfg := config.Default()
		cfg.Limits.MaxDescriptors = c.most
		n := &Node{deps: base.New(cfg, nil)}
		if _, err := n.deps.FDs.Open(cfg, n.deps.Count); err != nil {
			t.Fatal(err)
		}
		inner, err := net.Listen("unix", t.TempDir()+"/s")
		if err != nil {
			t.Fatal(err)
		}
		l := n.clientAcceptor(inner, "test", nil, c.waits)
		client, err := net.Dial("unix", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		accepted := make(chan bool, 1)
		go func() {
			k, err := l.Accept()
			if err == nil {
				k.Close()
			}
			accepted <- err == nil
		}()
		if c.holds {
			time.AfterFunc(50*time.Millisecond, func() { l.Close() })
		}
		if got := <-accepted; got == c.holds {
			t.Errorf("%+v: accepted %v", c, got)
		}
		client.Close()
		l.Close()
		n.deps.FDs.Close()
	}
}
