package client

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/toll/tolltest"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdserr"
	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/shm"
)

// TestCostlyClient: a client whose doorbell is watched two hundred thousand times, so
// that each ring takes milliseconds of a thread that serves others, loses its socket and
// is told why; others are served on and get rings.
func TestCostlyClient(t *testing.T) {
	n, cfg := startClients(t)
	addr := cfg.RDS.Addresses[0]
	client, err := rdsd.Dial(cfg.API.Socket, rdsd.WithFrontEnd(rdsd.Rings))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	good, err := client.Bind(clienttest.Context(t), netip.AddrPortFrom(addr, 0))
	if err != nil {
		t.Fatal(err)
	}
	const uid = 12345
	evil := clienttest.AttachOver(t, clienttest.ConnectAs(t, n.clients.Accept, config.Identity{UID: uid}), clienttest.BindTo(addr, 0))
	defer evil.Close()
	tolltest.Watch(t, evil.Ear)
	to := netip.AddrPortFrom(addr, uint16(evil.Bound.GetLocal().GetPort()))
	await.Until(t, 60*time.Second, "the client is found out", func() bool {
		*evil.Word(5248) = uint64(shm.ClientWaitsRecv)
		_ = good.Send(clienttest.Context(t), to, []byte("wake")) // until there is no such port
		time.Sleep(50 * time.Millisecond)
		return n.deps.Count.ClientsCostly.Load() > 0
	})
	for {
		msg, _, err := evil.C.ReadMessage()
		if err != nil {
			t.Fatal("it was not told why: ", err)
		}
		m := &rdsdv1.ServerMessage{}
		if err := proto.Unmarshal(msg, m); err != nil {
			t.Fatal(err)
		}
		if m.HasClosing() {
			if e := m.GetClosing(); e.GetErrno() != int32(unix.EUSERS) {
				t.Errorf("told %d, %s", e.GetErrno(), e.GetMessage())
			}
			break
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := good.Send(ctx, good.LocalAddr(), []byte("on")); err != nil {
		t.Errorf("another client cannot send: %v", err)
	}
	if _, err := client.Bind(clienttest.Context(t), netip.AddrPortFrom(addr, 0)); err != nil {
		t.Errorf("another user gets no rings: %v", err)
	}
}

// TestBans: a user gets no rings for a second, for twice as long each time after, up to
// a minute, and is forgotten a minute later. Others are not concerned, nor are sockets
// without rings.
func TestBans(t *testing.T) {
	n, _ := startClients(t)
	f, now := n.clients, time.Now()
	why := errors.New("too many watchers")
	addr := n.deps.Config.RDS.Addresses[0]
	const banned = 12345
	f.ban(config.Identity{UID: banned}, now.Add(time.Hour), why)
	for rings, b := range map[bool]*rdsdv1.Bind{true: clienttest.RingBind(addr, 0), false: clienttest.BindTo(addr, 0)} {
		p := clienttest.PacketsOver(t, clienttest.ConnectAs(t, n.clients.Accept, config.Identity{UID: banned}))
		if m := p.Bind(b); m.HasBound() == rings || rings && m.GetClosing().GetErrno() != int32(unix.EUSERS) {
			t.Errorf("rings %v: a user that may have none is told %v", rings, m)
		}
	}
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		f.ban(config.Identity{UID: 7}, now, why)
		for _, c := range []struct {
			uid  uint32
			at   time.Duration
			want error
		}{{7, 0, rdserr.ErrRateLimited}, {7, want*time.Second - 1, rdserr.ErrRateLimited}, {7, want * time.Second, nil}, {8, 0, nil}} {
			if err := f.banned(c.uid, now.Add(c.at)); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Errorf("banned for %d s: rings of user %d after %v: %v, want %v", want, c.uid, c.at, err, c.want)
			}
		}
		now = now.Add(want*time.Second + banKnown)
	}
	now = now.Add(1)
	f.ban(config.Identity{UID: 7}, now, why)
	if err := f.banned(7, now.Add(banMin)); err != nil {
		t.Errorf("what was long ago is not forgotten: %v", err)
	}
	for uid := range uint32(2 * maxBans) {
		f.ban(config.Identity{UID: 100 + uid}, now, why)
	}
	if len(f.bans) > maxBans {
		t.Errorf("%d users are banned", len(f.bans))
	}
}

// TestClientsOfAUser: what clients of one user cost is added up, whichever way the daemon calls them.
func TestClientsOfAUser(t *testing.T) {
	n, cfg := startClients(t)
	const uid = 12345
	r := clienttest.AttachOver(t, clienttest.ConnectAs(t, n.clients.Accept, config.Identity{UID: uid}), clienttest.BindTo(cfg.RDS.Addresses[0], 0))
	defer r.Close()
	await.Until(t, 5*time.Second, "it is served", func() bool { return len(n.clients.ringSocks()) == 1 })
	s := n.clients.ringSocks()[0]
	done := make(chan struct{})
	s.react.Do(func() {
		defer close(done)
		if u := n.deps.Tolls.Of(uid); s.alarm.Toll.User != u || s.ctl.ctl.Toll.User != u {
			t.Error("what it costs is not added to its user's")
		}
	})
	<-done
}
