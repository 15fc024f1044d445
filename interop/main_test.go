package interop

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/ahead"
)

// The kernel sits between our addresses, so that one boot serves both roles:
// the smaller address connects, the larger pokes.
var (
	ourPrefixes = prefixes("10.9.0.1/24", "10.9.0.200/24", "fd09::1/64", "fd09::200/64")
	kernelV4    = netip.MustParseAddr("10.9.0.100")
	kernelV6    = netip.MustParseAddr("fd09::100")
)

// pair is one combination of address family and role.
type pair struct {
	name         string
	ours, kernel netip.Addr
}

var pairs = []pair{
	{"v4-lower", netip.MustParseAddr("10.9.0.1"), kernelV4},
	{"v4-higher", netip.MustParseAddr("10.9.0.200"), kernelV4},
	{"v6-lower", netip.MustParseAddr("fd09::1"), kernelV6},
	{"v6-higher", netip.MustParseAddr("fd09::200"), kernelV6},
}

// lab is what all tests share: one namespace and one kernel.
type lab struct {
	ns  *Netns
	vm  *VM
	dir string
}

var rounds = flag.Int("interop.rounds", 1, "how often each test of rdsd and the kernel is run")

// The lab is made when the first test asks for it.
var (
	theLab  = sync.OnceValues(newLab)
	labMade atomic.Bool
)

func TestMain(m *testing.M) {
	HelperMain()
	ahead.Run()
	flag.Parse()
	code := m.Run()
	if labMade.Load() {
		code = max(code, closeLab(code != 0))
	}
	os.Exit(code)
}

func closeLab(failed bool) int {
	l, err := theLab()
	if err != nil {
		return 1 // the tests have said so
	}
	if failed {
		fmt.Fprintf(os.Stderr, "the kernel's console ends:\n%s\n", l.vm.Console())
	}
	if err := l.close(); err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
		return 1
	}
	return 0
}

func newLab() (_ *lab, err error) {
	l := &lab{}
	if l.dir, err = os.MkdirTemp("", "rdsd-interop-"); err != nil {
		return nil, err
	}
	if l.ns, err = NewNetns(ourPrefixes...); err != nil {
		return nil, err
	}
	if err = l.boot(); err != nil {
		return nil, err
	}
	return l, nil
}

// boot starts the kernel; with "cut=1" nothing it sends leaves until Netem.
func (l *lab) boot(options ...string) (err error) {
	guest, err := filepath.Abs("guest")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	l.vm, err = Boot(ctx, l.ns, BootOptions{
		GuestDir: guest, Dir: l.dir, Agent: options,
		Addrs: []netip.Prefix{netip.PrefixFrom(kernelV4, 24), netip.PrefixFrom(kernelV6, 64)},
	})
	return err
}

func (l *lab) close() error {
	err := l.vm.Kill()
	if e := l.ns.Close(); err == nil {
		err = e
	}
	if e := os.RemoveAll(l.dir); err == nil {
		err = e
	}
	return err
}

// needLab skips where no kernel can be run; CI must be able to.
func needLab(t *testing.T) *lab {
	t.Helper()
	err := Missing()
	switch {
	case err != nil && os.Getenv("CI") == "true":
		t.Fatalf("kernel interop cannot run here: %v", err)
	case err != nil:
		t.Skipf("kernel interop cannot run here: %v", err)
	case testing.Short():
		t.Skip("kernel interop takes minutes; not with -short")
	}
	labMade.Store(true)
	l, err := theLab()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func limited(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// at is an address and port as the agent takes it.
func at(a netip.Addr, port uint16) []any { return []any{a.String(), port} }
