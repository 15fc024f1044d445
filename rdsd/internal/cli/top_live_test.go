package cli

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/freeport"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// serveLive runs a daemon as rdsd serve does, and returns a client of it.
func serveLive(t *testing.T, addr netip.Addr, port, volumes uint16) (socket string, c *rdsd.Client) {
	t.Helper()
	dir := t.TempDir()
	socket = filepath.Join(dir, "s")
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan string, 1)
	go func() { // ends with ctx
		var errw bytes.Buffer
		code := run(ctx, []string{"serve", "--address", addr.String(), "--port", strconv.Itoa(int(port)), "--volume-port", strconv.Itoa(int(volumes)),
			"--socket", socket, "--http", "", "--drain-timeout", "200ms", "--log-level", "error"}, strings.NewReader(""), &errw, &errw)
		ended <- fmt.Sprintf("%d %s", code, &errw)
	}()
	t.Cleanup(func() {
		if c != nil {
			c.Close()
		}
		stop()
		if said := <-ended; said != "0 " {
			t.Errorf("the daemon ended with %s", said)
		}
	})
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		select {
		case said := <-ended:
			ended <- said
			t.Fatalf("the daemon ended with %s", said)
		default:
		}
		var err error
		if c, err = rdsd.Dial(socket); err != nil {
			continue
		}
		if st, err := c.Admin().Status(ctx); err == nil && st.State == "serving" {
			return socket, c
		}
		c.Close()
		c = nil
	}
	t.Fatal("the daemon does not serve")
	return "", nil
}

// TestTopOfALiveDaemon: under traffic, while a port congests and clears, what stands on the
// screen is what the API says, also after the window has changed.
func TestTopOfALiveDaemon(t *testing.T) {
	near, far := netip.MustParseAddr("127.0.43.1"), netip.MustParseAddr("127.0.43.2")
	var ports [2]uint16
	for i := range ports {
		var err error
		if ports[i], err = freeport.On(near, far); err != nil {
			t.Fatal(err)
		}
	}
	socket, c := serveLive(t, near, ports[0], ports[1])
	_, there := serveLive(t, far, ports[0], ports[1])
	ctx, cancel := context.WithCancel(context.Background())
	var apps sync.WaitGroup
	t.Cleanup(func() { cancel(); apps.Wait() })
	from, err := c.Bind(ctx, netip.AddrPortFrom(near, 7001), rdsd.WithLabel("sender"))
	if err != nil {
		t.Fatal(err)
	}
	to, err := there.Bind(ctx, netip.AddrPortFrom(far, 7002), rdsd.WithLabel("reader"), rdsd.WithRecvBuffer(64<<10), rdsd.WithRecvWindow(4, 4<<10))
	if err != nil {
		t.Fatal(err)
	}
	reads := make(chan struct{})
	apps.Go(func() {
		for ctx.Err() == nil {
			once, done := context.WithTimeout(ctx, 50*time.Millisecond)
			_ = from.Send(once, to.LocalAddr(), make([]byte, 1024)) // full: that is what is looked at
			done()
			time.Sleep(time.Millisecond)
		}
	})
	apps.Go(func() {
		<-reads
		for ctx.Err() == nil {
			_, _ = to.Recv(ctx)
		}
	})
	t.Cleanup(func() {
		select {
		case <-reads:
		default:
			close(reads)
		}
	})

	x := newTerminal(t, "top", "--socket", socket, "-d", "100ms")
	x.until("the peer as the API has it", func(l []string) bool {
		peers, err := c.Admin().Peers(ctx, rdsd.PeerFilter{})
		if err != nil || len(peers) != 1 || peers[0].State != rdsd.StateUp {
			return false
		}
		f := strings.Fields(rows(l)[0])
		return len(f) > 4 && f[0] == far.String() && f[1] == "up" && f[2] == string(peers[0].Kind) && f[3] == fmt.Sprintf("%d/%d", len(peers[0].Paths), len(peers[0].Paths)) && has("[1 peers 1]")(l)
	})
	x.press("3")
	x.until("the congested port with its reader", func(l []string) bool {
		list, _, err := c.Admin().Congestion(ctx)
		if err != nil || len(list) != 1 || list[0].ReaderPID == 0 {
			return false
		}
		r := rows(l)[0]
		return strings.HasPrefix(r, list[0].Endpoint.String()+" ") && strings.Contains(r, fmt.Sprintf("pid %d (uid %d)", list[0].ReaderPID, list[0].ReaderUID)) &&
			strings.Contains(r, from.LocalAddr().String()) && int(list[0].ReaderPID) == os.Getpid()
	})
	close(reads)
	x.until("that no port is", func(l []string) bool {
		list, _, err := c.Admin().Congestion(ctx)
		return err == nil && len(list) == 0 && has("no port is congested")(l)
	})
	x.press("2")
	socketRow := func(l []string) bool {
		list, err := c.Admin().Sockets(ctx)
		if err != nil || len(list) != 1 {
			return false
		}
		f := strings.Fields(rows(l)[0])
		return len(f) > 6 && f[0] == list[0].Local.String() && f[1] == fmt.Sprint(list[0].PID) && f[2] == list[0].Program && f[4] == "sender" && strings.HasSuffix(f[5], "/s") && f[5] != "0/s"
	}
	x.until("the socket, and how fast it sends", socketRow)
	x.size(100, 12)
	x.until("the same in a small window", func(l []string) bool { return len(l) == 12 && socketRow(l) })
	x.size(160, 50)
	x.until("the same in a large one", func(l []string) bool { return len(l) == 50 && socketRow(l) })
	x.press("q")
	select {
	case code := <-x.code:
		if code != 0 {
			t.Errorf("it ended with %d", code)
		}
	case <-time.After(30 * time.Second):
		t.Error("q does not end it")
	}
}
