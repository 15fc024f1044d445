package node

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/node/client"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/datagram"
)

// TestStayingNamesTheCulprit: the line has the port, who ought to read and who fills it.
func TestStayingNamesTheCulprit(t *testing.T) {
	n, cfg := startWith(t, func(*config.Config) {})
	local := cfg.RDS.Addresses[0]
	rb := &rdsdv1.Bind{} // no credit: never read
	rb.SetLocal(client.EndpointPB(netip.AddrPortFrom(local, 4300)))
	rb.SetRecvBufferBytes(4096)
	rb.SetLabel("sleeper")
	reader := mustBind(t, cfg, rb)
	s := mustBind(t, cfg, bindTo(local, 0))
	for deadline := time.Now().Add(5 * time.Second); ; {
		s.send(batchOf(1, reader.local, strings.Repeat("x", 3000)))
		if r := want(s, asResult); len(r.GetErrors()) > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("never congested")
		}
	}
	told := func(after time.Duration) (lines []string) {
		n.hosts.LookStaying(datagram.NewStaying(after))
		logged, _ := n.errors().list()
		for _, e := range logged {
			if e.message == "a port stays congested" {
				lines = append(lines, e.subject+" "+e.why)
			}
		}
		return lines
	}
	if l := told(time.Hour); l != nil {
		t.Errorf("told at once: %q", l)
	}
	l := told(0)
	if len(l) != 1 {
		t.Fatalf("%d lines: %q", len(l), l)
	}
	for _, want := range []string{"port=" + reader.local.String() + " ", fmt.Sprintf(`"sleeper", pid %d of uid %d, does not read`, os.Getpid(), os.Getuid()), "bytes unread, most of it from " + s.local.String()} {
		if !strings.Contains(l[0], want) {
			t.Errorf("%q is not in %q", want, l[0])
		}
	}
}
