package tcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/transport"
)

var loop95 = netip.MustParseAddrPort("127.0.0.95:0")

func handshake(kind transport.OpKind, private string) []byte {
	b, err := transport.AppendHandshake(nil, kind, []byte(private))
	if err != nil {
		panic(err)
	}
	return b
}

// tag is one frame.
func tag(t transport.Tag, payload []byte) []byte {
	b := make([]byte, transport.TagLen)
	t.Put(b)
	return append(b, payload...)
}

// rawPeer connects to a link of ours by hand.
func rawPeer(t *testing.T, p *Provider) (c net.Conn, y *one) {
	t.Helper()
	y = newOne(t, p)
	accepted := make(chan transport.OneSided, 1)
	ln, err := p.ListenOneSided(loop95, func(q transport.ConnRequest) {
		l, err := q.Accept(y.d, transport.LinkAttr{}, nil)
		if err != nil {
			t.Error(err)
		}
		accepted <- l
	})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if c, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	c.Write(handshake(transport.TagConnect, "by hand"))
	y.l = (<-accepted).(*OneSided)
	if _, err := io.ReadFull(c, make([]byte, transport.TagLen)); err != nil {
		t.Fatal(err)
	}
	y.l.Start(y, transport.MaxSend)
	t.Cleanup(func() {
		c.Close()
		<-y.closed
	})
	return c, y
}

func (o *one) wantClosed(what string, as any) {
	o.t.Helper()
	select {
	case <-o.closed:
	case <-time.After(10 * time.Second):
		o.t.Fatalf("%s: the link goes on", what)
	}
	if as != nil && !errors.As(o.err, as) {
		o.t.Errorf("%s: the link ended with %v", what, o.err)
	}
}

func TestHostileFrames(t *testing.T) {
	p := newProvider(t)
	var denied *transport.AccessError
	var bad *transport.TagError
	for _, c := range []struct {
		name   string
		frames func(key uint32, addr uint64) []byte
		as     any
	}{
		{"absurd write", func(key uint32, addr uint64) []byte {
			return tag(transport.Tag{Kind: transport.OpWrite, Seq: 1, Key: key, Addr: addr, Len: 0xffffffff}, nil)
		}, &denied},
		{"write beyond the end of addresses", func(key uint32, addr uint64) []byte {
			return tag(transport.Tag{Kind: transport.OpWrite, Seq: 1, Key: key, Addr: ^uint64(0), Len: 2}, nil)
		}, &denied},
		{"absurd send", func(uint32, uint64) []byte {
			return tag(transport.Tag{Kind: transport.OpSend, Seq: 1, Len: 0x7fffffff}, nil)
		}, &bad},
		{"number left out", func(uint32, uint64) []byte {
			return tag(transport.Tag{Kind: transport.OpSend, Seq: 2}, nil)
		}, &bad},
		{"handshake again", func(uint32, uint64) []byte {
			b := handshake(transport.TagConnect, "")
			var t transport.Tag
			if err := t.Parse(b, 0); err != nil {
				panic(err)
			}
			t.Seq = 1
			return tag(t, nil)
		}, &bad},
		{"damaged", func(key uint32, addr uint64) []byte {
			b := tag(transport.Tag{Kind: transport.OpWriteImm, Seq: 1, Key: key, Addr: addr, Len: 4096}, make([]byte, 4096))
			b[12] ^= 1
			return b
		}, &bad},
		{"something else", func(uint32, uint64) []byte { return []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") }, &bad},
	} {
		conn, y := rawPeer(t, p)
		mem := bytes.Repeat([]byte{7}, 4096)
		key, addr := y.d.Register(mem)
		conn.Write(append(c.frames(key, addr), make([]byte, 10000)...))
		y.wantClosed(c.name, c.as)
		if bytes.Count(mem, []byte{7}) != len(mem) || y.events.Load() != 0 {
			t.Errorf("%s: bytes were placed, or %d events", c.name, y.events.Load())
		}
		if y.d.Revoke(key) != transport.Idle {
			t.Errorf("%s: the key is busy when the link has ended", c.name)
		}
	}
}

// TestHalfFrames: a peer that ends in the middle.
func TestHalfFrames(t *testing.T) {
	p := newProvider(t)
	whole := func(key uint32, addr uint64) []byte {
		return tag(transport.Tag{Kind: transport.OpWriteImm, Seq: 1, Key: key, Addr: addr, Len: 100}, bytes.Repeat([]byte{1}, 100))
	}
	for _, n := range []int{1, transport.TagLen - 1, transport.TagLen, transport.TagLen + 1, transport.TagLen + 99} {
		c, y := rawPeer(t, p)
		mem := make([]byte, 200)
		key, addr := y.d.Register(mem[50:150])
		c.Write(whole(key, addr)[:n])
		c.Close()
		y.wantClosed("half a frame", nil)
		if y.err != io.ErrUnexpectedEOF || y.events.Load() != 0 {
			t.Errorf("%d of %d bytes: %v, %d events", n, transport.TagLen+100, y.err, y.events.Load())
		}
		if y.d.Revoke(key) != transport.Idle {
			t.Errorf("%d bytes: the key is busy when the link has ended", n)
		}
	}
}

// TestDrip: frames byte by byte arrive as they should.
func TestDrip(t *testing.T) {
	c, y := rawPeer(t, newProvider(t))
	c.(*net.TCPConn).SetNoDelay(true)
	mem := make([]byte, 20)
	key, addr := y.d.Register(mem)
	b := tag(transport.Tag{Kind: transport.OpWriteImm, Seq: 1, Key: key, Addr: addr + 5, Len: 10}, []byte("0123456789"))
	b = append(b, tag(transport.Tag{Kind: transport.OpSend, Seq: 2, Len: 3}, []byte("abc"))...)
	b = append(b, tag(transport.Tag{Kind: transport.OpSendInval, Seq: 3, Key: key}, nil)...)
	for i := range b {
		c.Write(b[i : i+1])
	}
	eventually(t, "three events", func() bool { return y.events.Load() == 3 })
	if string(mem) != "\x00\x00\x00\x00\x000123456789\x00\x00\x00\x00\x00" {
		t.Errorf("%q", mem)
	}
}

// TestRevokeUnderWay: Revoke says that a write is under way, the link that
// carries it ends without another byte, and then the memory is the owner's.
func TestRevokeUnderWay(t *testing.T) {
	p := newProvider(t)
	for _, closed := range []bool{false, true} {
		c, y := rawPeer(t, p)
		mem := make([]byte, 100000)
		key, addr := y.d.Register(mem)
		c.Write(tag(transport.Tag{Kind: transport.OpWriteImm, Seq: 1, Key: key, Addr: addr, Len: 100000}, []byte{1}))
		busy := func() (v bool) {
			done := make(chan struct{})
			y.l.Reactor().Do(func() { v = y.l.in.Partial(); close(done) })
			<-done
			return v
		}
		eventually(t, "a write under way", busy)
		if y.d.Revoke(key) == transport.Idle {
			t.Fatal("a key is idle while a write is under way")
		}
		if closed {
			y.l.Close()
		}
		c.Write(bytes.Repeat([]byte{2}, 99999))
		if closed {
			y.wantClosed("closed with a write under way", nil)
		} else {
			y.wantClosed("revoked with a write under way", new(*transport.AccessError))
		}
		if bytes.Count(mem[1:], []byte{0}) != len(mem)-1 || y.events.Load() != 0 {
			t.Errorf("closed %v: bytes were placed behind Revoke, or %d events", closed, y.events.Load())
		}
	}
}

// TestNeverReads: a peer that never reads does not block who posts, and what
// has been posted is let go of when the link is closed.
func TestNeverReads(t *testing.T) {
	_, y := rawPeer(t, newProvider(t))
	data := lockedMem(t, 1<<20)
	posted := make(chan struct{})
	go func() { // ends when all is posted
		defer close(posted)
		for range 300 {
			y.l.Post(&transport.Op{Kind: transport.OpWrite, Data: data})
			y.l.Flush()
		}
	}()
	select {
	case <-posted:
	case <-time.After(10 * time.Second):
		t.Fatal("posting blocks")
	}
	turns := func() uint64 { n, _, _, _ := y.l.Reactor().Stats(); return n }
	y.l.Reactor().Sync()
	eventually(t, "rest", func() bool { n := turns(); time.Sleep(10 * time.Millisecond); return turns()-n < 500 })
	y.l.Close()
	y.wantClosed("a peer that never reads", nil)
	unix.Mprotect(data, unix.PROT_NONE) // whoever reads it now ends the test
	y.l.Flush()
	y.l.Post(&transport.Op{Kind: transport.OpWrite, Data: data})
	y.l.Flush()
	if n := y.l.out.Ops(); n != 0 {
		t.Errorf("%d operations are kept after the end", n)
	}
}

// --- handshakes --------------------------------------------------------------

func TestHostileHello(t *testing.T) {
	var asked atomic.Int64
	ln, err := newProvider(t).listenOneSided(loop95, func(q transport.ConnRequest) { asked.Add(1); q.Reject(nil) }, 200*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	good := handshake(transport.TagConnect, "private")
	for _, c := range []struct {
		name string
		b    []byte
	}{
		{"another program", []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")},
		{"an RDS header", binary.BigEndian.AppendUint64(make([]byte, 40), 1)},
		{"an absurd length", append(append(bytes.Clone(good[:12]), 0xff, 0xff, 0xff, 0xff), good[16:]...)},
		{"an answer", handshake(transport.TagAccept, "")},
		{"an operation", tag(transport.Tag{Kind: transport.OpSend}, nil)},
		{"damaged", append(bytes.Clone(good[:20]), make([]byte, 30)...)},
		{"half a header", good[:10]},
		{"half of the private data", good[:len(good)-1]},
		{"nothing", nil},
	} {
		k, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		k.Write(c.b)
		k.SetReadDeadline(time.Now().Add(10 * time.Second))
		if n, err := io.Copy(io.Discard, k); n != 0 || errors.Is(err, unix.ETIMEDOUT) || err != nil && !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%s: answered with %d bytes, %v", c.name, n, err)
		}
		k.Close()
	}
	if asked.Load() != 0 {
		t.Errorf("the program was asked %d times", asked.Load())
	}

	// Another version is told which one is spoken here.
	var h transport.Tag
	if err := h.Parse(good, 0); err != nil {
		t.Fatal(err)
	}
	h.Key, h.Len = transport.TagVersion+1, 0
	k, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	k.Write(tag(h, nil))
	var b [transport.TagLen]byte
	if _, err := io.ReadFull(k, b[:]); err != nil || h.Parse(b[:], 0) != nil || h.Kind != transport.TagReject || h.Key != transport.TagVersion {
		t.Errorf("another version: %v, %+v", err, h)
	}

	// A slow one has no longer than others.
	k, err = net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	begin := time.Now()
	for i := 0; time.Since(begin) < 10*time.Second; i++ {
		if _, err := k.Write(good[i%10 : i%10+1]); err != nil || i > 30 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if d := time.Since(begin); d > 5*time.Second || asked.Load() != 0 {
		t.Errorf("a slow handshake was waited for %v, and the program asked %d times", d, asked.Load())
	}
}

// TestCrowd: connections that show nothing do not keep out one that does; and the
// listener closes them.
func TestCrowd(t *testing.T) {
	p := newProvider(t)
	ln, err := p.ListenOneSided(loop95, func(q transport.ConnRequest) { q.Reject([]byte("seen")) })
	if err != nil {
		t.Fatal(err)
	}
	var crowd []net.Conn
	for range 100 {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		crowd = append(crowd, c)
	}
	begin := time.Now()
	_, _, err = p.DialOneSided(context.Background(), netip.AddrPort{}, ln.Addr(), p.NewDomain(), transport.LinkAttr{}, nil)
	var r *transport.Refused
	if !errors.As(err, &r) || string(r.Private) != "seen" || time.Since(begin) > helloTime/2 {
		t.Errorf("after %v: %v", time.Since(begin), err)
	}
	ln.Close()
	for _, c := range crowd {
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, unix.ETIMEDOUT) {
			t.Fatalf("a connection of a closed listener: %v", err)
		}
	}
}

// TestHostileAnswer: what a dial meets.
func TestHostileAnswer(t *testing.T) {
	p := newProvider(t)
	srv, err := net.Listen("tcp", "127.0.0.95:0")
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	remote := srv.Addr().(*net.TCPAddr).AddrPort()
	for _, c := range []struct {
		name, says string
		b          []byte
	}{
		{"silence", "deadline", nil},
		{"half an answer", "deadline", handshake(transport.TagAccept, "")[:31]},
		{"another program", "begins no handshake", []byte("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")},
		{"a question", "kind 16", handshake(transport.TagConnect, "")},
		{"an operation", "before the handshake", tag(transport.Tag{Kind: transport.OpSendImm}, nil)},
	} {
		held := make(chan net.Conn, 1)
		go func() { // ends when the connection has come
			k, err := srv.Accept()
			if err == nil {
				k.Write(c.b)
			}
			held <- k
		}()
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		if c.says != "deadline" {
			cancel()
			ctx, cancel = context.WithTimeout(context.Background(), 10*time.Second)
		}
		_, _, err := p.DialOneSided(ctx, netip.AddrPort{}, remote, p.NewDomain(), transport.LinkAttr{}, nil)
		cancel()
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), remote.String()) {
			t.Errorf("%s: %v; %q should be said", c.name, err, c.says)
		}
		if c.says == "deadline" && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", c.name, err)
		}
		(<-held).Close()
	}
}

func TestDomainOnReactor(t *testing.T) {
	p := newProvider(t)
	for _, lp := range p.loops {
		d, err := p.NewDomainOn(lp.r)
		if err != nil || d.(*Domain).Reactor() != lp.r {
			t.Errorf("a domain on another reactor, or %v", err)
		}
	}
	if _, err := p.NewDomainOn(nil); err == nil {
		t.Error("a domain on no reactor")
	}
}

// TestCloseMeetsPost: posters in other threads while the link ends. Closed is
// said once, and nothing is read of Data afterwards.
func TestCloseMeetsPost(t *testing.T) {
	p := newProvider(t)
	for range 20 {
		x, y := onePair(t, p, netip.MustParseAddr("127.0.0.96"))
		data := lockedMem(t, 256<<10)
		x.l.Start(x, transport.MaxSend)
		y.l.Start(y, transport.MaxSend)
		key, addr := y.d.Register(make([]byte, len(data)))
		stop := make(chan struct{})
		done := make(chan struct{}, 2)
		for range 2 {
			go func() { // ends with stop
				defer func() { done <- struct{}{} }()
				for {
					select {
					case <-stop:
						return
					default:
						x.l.Post(&transport.Op{Kind: transport.OpWriteImm, Key: key, Addr: addr, Data: data})
						x.l.Flush()
					}
				}
			}()
		}
		eventually(t, "traffic", func() bool { return y.events.Load() > 3 })
		x.l.Close()
		<-x.closed
		unix.Mprotect(data, unix.PROT_NONE)
		eventually(t, "the peer's end", func() bool {
			select {
			case <-y.closed:
				return true
			default:
				return false
			}
		})
		close(stop)
		<-done
		<-done
	}
}
