package node

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/toll/tolltest"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdserr"
	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/shm"
)

// TestCostlyClient: a client whose doorbell is watched two hundred thousand times, so
// that each ring takes milliseconds of a thread that serves others, loses its socket and
// is told why; others are served on and get rings.
func TestCostlyClient(t *testing.T) {
	n, cfg := startOne(t)
	addr := cfg.RDS.Addresses[0]
	client, err := rdsd.Dial(cfg.API.Socket, rdsd.WithFrontEnd(rdsd.Rings))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	good, err := client.Bind(testContext(t), netip.AddrPortFrom(addr, 0))
	if err != nil {
		t.Fatal(err)
	}
	const uid = 12345
	evil := attachOver(t, connectAs(t, n, config.Identity{UID: uid}), bindTo(addr, 0))
	defer evil.close()
	tolltest.Watch(t, evil.ear)
	to := netip.AddrPortFrom(addr, uint16(evil.bound.GetLocal().GetPort()))
	await.Until(t, 60*time.Second, "the client is found out", func() bool {
		*evil.word(5248) = uint64(shm.ClientWaitsRecv)
		_ = good.Send(testContext(t), to, []byte("wake")) // until there is no such port
		time.Sleep(50 * time.Millisecond)
		return n.deps.Count.ClientsCostly.Load() > 0
	})
	for {
		msg, _, err := evil.c.ReadMessage()
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
	if _, err := client.Bind(testContext(t), netip.AddrPortFrom(addr, 0)); err != nil {
		t.Errorf("another user gets no rings: %v", err)
	}
}

// TestBans: a user gets no rings for a second, for twice as long each time after, up to
// a minute, and is forgotten a minute later. Others are not concerned, nor are sockets
// without rings.
func TestBans(t *testing.T) {
	n, _ := startOne(t)
	f, now := n.clients, time.Now()
	why := errors.New("too many watchers")
	addr := n.deps.Config.RDS.Addresses[0]
	const banned = 12345
	f.ban(config.Identity{UID: banned}, now.Add(time.Hour), why)
	for rings, b := range map[bool]*rdsdv1.Bind{true: ringBind(addr, 0), false: bindTo(addr, 0)} {
		p := &packetClient{t, connectAs(t, n, config.Identity{UID: banned})}
		if m := p.bind(b); m.HasBound() == rings || rings && m.GetClosing().GetErrno() != int32(unix.EUSERS) {
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

// TestCostlyConnections: the same for a connection of gRPC and a socket without rings:
// what is watched too often is ended, and noted.
func TestCostlyConnections(t *testing.T) {
	n, cfg := startOne(t)
	const settings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	// until has say called until n says that a client was ended, with the descriptor watched.
	until := func(t *testing.T, c syscall.Conn, say func() error) {
		before := n.deps.Count.ClientsCostly.Load()
		raw, err := c.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		raw.Control(func(fd uintptr) { tolltest.Watch(t, int(fd)) })
		for err == nil && n.deps.Count.ClientsCostly.Load() == before {
			err = say()
			time.Sleep(5 * time.Millisecond)
		}
		await.Until(t, 5*time.Second, "it is noted", func() bool { return n.deps.Count.ClientsCostly.Load() == before+1 })
	}
	t.Run("gRPC", func(t *testing.T) {
		conn, err := net.Dial("unix", cfg.API.Socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(30 * time.Second))
		if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+settings); err != nil {
			t.Fatal(err)
		}
		go io.Copy(io.Discard, conn) // ends with the connection
		until(t, conn.(syscall.Conn), func() error {
			_, err := io.WriteString(conn, settings)
			return err
		})
	})
	t.Run("packets", func(t *testing.T) {
		p := dialPackets(t, cfg)
		if m := p.bind(bindTo(cfg.RDS.Addresses[0], 0)); !m.HasBound() {
			t.Fatal(m)
		}
		m := &rdsdv1.ClientMessage{}
		m.SetPeek(&rdsdv1.Peek{})
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		until(t, p.c, func() error {
			if err := p.c.WriteMessage(b); err != nil {
				return err
			}
			_, _, err := p.c.ReadMessage()
			return err
		})
	})
}
