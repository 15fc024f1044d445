package node

import (
	"net/netip"
	"os"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/node/page"
)

// TestKeeperFindsWhatItMissed: a keeper of the hour that begins when a port is congested
// already, of which nobody tells it any more, finds it and who should read it when it looks
// at everything; it notes when the port is clear, and ends when it is told to.
func TestKeeperFindsWhatItMissed(t *testing.T) {
	x := startIll(t, nil)
	port, reader := x.congests(t, x)
	k := page.NewKeeper(x.n.hosts)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		k.Run(stop)
	}()
	kept := func() *rdsdv1.PortHistory {
		if l := k.History(port).GetPort(); len(l) == 1 {
			return l[0]
		}
		return nil
	}
	await.Until(t, 30*time.Second, "the keeper has found the port", func() bool { return kept().GetCongested() && kept().GetReaderPid() != 0 })
	p := kept()
	if int(p.GetReaderPid()) != os.Getpid() || p.GetReaderProgram() == "" || len(p.GetCulprit()) != 1 || !p.GetLocal() || p.GetTimes() != 1 {
		t.Errorf("it has %v", p)
	}
	if err := reader.stream.CloseSend(); err != nil { // the socket is closed, and its port clear
		t.Fatal(err)
	}
	await.Until(t, 30*time.Second, "the keeper has noted that it is clear", func() bool { return !kept().GetCongested() })
	if p := kept(); p.GetCongestedNs() == 0 || p.GetReaderPid() == 0 {
		t.Errorf("of a port that is clear it has %v", p)
	}
	if n := len(k.History(netip.AddrPort{}).GetPort()); n != 1 {
		t.Errorf("it has %d ports", n)
	}
	close(stop)
	<-done
}
