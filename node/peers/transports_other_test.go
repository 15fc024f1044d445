package peers

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/tcp"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// TestOtherTransportsAreJudged: who asks to connect over a transport that Use has added is
// judged as over TCP, by the address, and on this machine by whose the other end is; where
// nobody can tell whose, it is refused. So is who answers our own connections.
func TestOtherTransportsAreJudged(t *testing.T) {
	mine := func(netip.AddrPort, netip.AddrPort) (uint32, error) { return uint32(os.Geteuid()), nil }
	others := func(netip.AddrPort, netip.AddrPort) (uint32, error) { return 12345, nil }
	nobody := func(netip.AddrPort, netip.AddrPort) (uint32, error) { return 0, errors.New("no such socket") }
	far := []config.Prefix{{Prefix: netip.MustParsePrefix("10.0.0.0/8")}}
	for name, c := range map[string]struct {
		allow []config.Prefix
		owner func(local, remote netip.AddrPort) (uint32, error)
		errno syscall.Errno // 0: let in
	}{
		"this user":             {nil, mine, 0},
		"another user":          {nil, others, syscall.EACCES},
		"whoever":               {nil, nobody, syscall.EACCES},
		"it cannot be told":     {nil, nil, syscall.EACCES},
		"an address not listed": {far, mine, syscall.EACCES},
	} {
		r := newRegistry(t, func(x *config.Config) { x.Volumes.Allow = c.allow })
		re, err := reactor.New(reactor.Options{Name: "other", CPU: -1, SpinFor: -1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { re.Close() })
		links := tcp.New(re) // judges nobody
		r.Use(OneSidedTransport{Name: "other", Provider: links, Port: 7, Owner: c.owner})
		list := r.OneSided()
		if len(list) != 2 || list[0].Name != "tcp" || list[0].Port != 0 || list[1].Name != "other" || list[1].Port != 7 {
			t.Fatalf("%+v", list)
		}
		p := list[1].Provider
		asked := 0
		ln, err := p.ListenOneSided(netip.MustParseAddrPort("127.0.0.97:0"), func(q transport.ConnRequest) {
			asked++
			q.Reject([]byte("seen"))
		})
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = links.DialOneSided(context.Background(), netip.AddrPort{}, ln.Addr(), links.NewDomain(), transport.LinkAttr{}, nil)
		x, ok := errors.AsType[*transport.Refused](err)
		if !ok {
			t.Fatalf("%s: %v", name, err)
		}
		want, refused := "seen", uint64(0)
		if c.errno != 0 {
			no := rtrswire.Reject(uint16(c.errno))
			want, refused = string(no.Append(nil)), 1
		}
		if string(x.Private) != want || r.Refused() != refused || (asked == 1) != (c.errno == 0) {
			t.Errorf("%s: it was told %x, %d refusals are counted, its owner was asked %d times", name, x.Private, r.Refused(), asked)
		}
		ln.Close()

		// The other way: who answers.
		plain, err := links.ListenOneSided(netip.MustParseAddrPort("127.0.0.97:0"), func(q transport.ConnRequest) {
			if l, err := q.Accept(links.NewDomain(), transport.LinkAttr{}, nil); err == nil {
				l.Close()
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		l, _, err := p.DialOneSided(context.Background(), netip.AddrPort{}, plain.Addr(), p.NewDomain(), transport.LinkAttr{}, nil)
		if wrong := c.errno != 0 && c.allow == nil; (err != nil) != wrong || (l == nil) != wrong || wrong && !strings.Contains(err.Error(), "127.0.0.97") && !strings.Contains(err.Error(), "on this machine") {
			t.Errorf("%s: a connection to it: %v", name, err)
		}
		if l != nil {
			l.Close()
		}
		plain.Close()
		if used := r.Budgets()[1].Used; used != 0 {
			t.Errorf("%s: %d turns are kept", name, used)
		}
	}
}
