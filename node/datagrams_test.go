package node

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/node/client"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdserr"
)

func errno(n int32) syscall.Errno { return syscall.Errno(n) }

func TestDatagramsBetweenNodes(t *testing.T) {
	cfgs := startNodes(t, 2, nil)
	a := mustBind(t, cfgs[0], bindTo(cfgs[0].RDS.Addresses[0], 0))
	b := mustBind(t, cfgs[1], bindTo(cfgs[1].RDS.Addresses[0], 4000))
	if b.local.Port() != 4000 || a.local.Port() < 1024 {
		t.Errorf("bound to %v and %v", a.local, b.local)
	}
	batch := batchOf(1, b.local, "one", "", "three")
	batch.SetFirstTag(10)
	batch.SetWantOutcomes(true)
	a.send(batch)
	if got := resultString(want(a, asResult)); got != "id 1 accepted 3" {
		t.Error(got)
	}
	got, from := b.recv(3)
	if strings.Join(got, "|") != "one||three" || from[0] != a.local || from[2] != a.local {
		t.Errorf("received %q from %v", got, from)
	}
	count := uint32(0)
	for count < 3 {
		for _, o := range want(a, asOutcomes).GetOutcome() {
			if o.GetKind() != rdsdv1.OutcomeKind_OUTCOME_KIND_DELIVERED || o.GetFirstTag() != 10+uint64(count) {
				t.Errorf("outcome %v", o)
			}
			count += o.GetCount()
		}
	}
	b.send(batchOf(2, a.local, "back"))
	if got, _ := a.recv(1); got[0] != "back" {
		t.Errorf("received %q", got)
	}
}

func TestManyAndLargeDatagrams(t *testing.T) {
	cfgs := startNodes(t, 2, nil)
	a := mustBind(t, cfgs[0], bindTo(cfgs[0].RDS.Addresses[0], 0))
	b := mustBind(t, cfgs[1], bindTo(cfgs[1].RDS.Addresses[0], 0))
	const batches, each = 200, 64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range batches {
			if r := want(a, asResult); r.GetAccepted() != each {
				t.Errorf("result %s", resultString(r))
			}
		}
	}()
	go func() {
		for i := range batches {
			var p []string
			for k := range each {
				p = append(p, fmt.Sprintf("%06d", i*each+k))
			}
			batch := batchOf(uint64(i), b.local, p...)
			batch.SetWait(true)
			a.send(batch)
		}
	}()
	got, _ := b.recv(batches * each)
	for i, g := range got {
		if g != fmt.Sprintf("%06d", i) {
			t.Fatalf("datagram %d is %q", i, g)
		}
	}
	<-done
	large := strings.Repeat("x", 1<<20)
	batch := batchOf(9, b.local, large)
	batch.SetWait(true)
	a.send(batch)
	if got, _ := b.recv(1); got[0] != large {
		t.Error("1 MiB did not arrive whole")
	}
}

func TestBindErrors(t *testing.T) {
	cfgs := startNodes(t, 1, func(c *config.Config) {
		c.Limits.MaxSockets, c.Limits.MaxSocketsPerUID = 2, 2
	})
	cfg, local := cfgs[0], cfgs[0].RDS.Addresses[0]
	mustBind(t, cfg, bindTo(local, 5000))
	with := func(f func(*rdsdv1.Bind)) *rdsdv1.Bind { b := bindTo(local, 0); f(b); return b }
	raw := func(addr []byte, port uint32) func(*rdsdv1.Bind) {
		return func(b *rdsdv1.Bind) {
			e := &rdsdv1.Endpoint{}
			e.SetAddress(addr)
			e.SetPort(port)
			b.SetLocal(e)
		}
	}
	for _, tc := range []struct {
		name string
		bind *rdsdv1.Bind
		err  *rdserr.Error
		says string
	}{
		{"in use", bindTo(local, 5000), rdserr.ErrAddrInUse, "5000"},
		{"other address", bindTo(netip.MustParseAddr("192.0.2.1"), 0), rdserr.ErrAddrNotAvail, "bind one of " + local.String()},
		{"no address", with(raw(nil, 0)), rdserr.ErrInvalid, "bind.local.address has 0 bytes"},
		{"short address", with(raw([]byte{1, 2, 3}, 0)), rdserr.ErrInvalid, "bind.local.address has 3 bytes; want 4"},
		{"any address", with(raw([]byte{0, 0, 0, 0}, 0)), rdserr.ErrInvalid, "not the address of one node"},
		{"port", with(raw(local.AsSlice(), 65536)), rdserr.ErrInvalid, "bind.local.port is 65536"},
		{"port 1", bindTo(local, 1), rdserr.ErrInvalid, "reserved"},
		{"send buffer", with(func(b *rdsdv1.Bind) { b.SetSendBufferBytes(1 << 40) }), rdserr.ErrInvalid, "bind.send_buffer_bytes"},
		{"recv buffer", with(func(b *rdsdv1.Bind) { b.SetRecvBufferBytes(1 << 63) }), rdserr.ErrInvalid, "bind.recv_buffer_bytes"},
		{"label", with(func(b *rdsdv1.Bind) { b.SetLabel(strings.Repeat("x", 65)) }), rdserr.ErrInvalid, "bind.label has 65 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := openSocket(t, cfg, tc.bind)
			if !errors.Is(err, tc.err) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v, want %v saying %q", err, tc.err.Name, tc.says)
			}
		})
	}
	mustBind(t, cfg, bindTo(local, 0))
	if _, err := openSocket(t, cfg, bindTo(local, 0)); !errors.Is(err, rdserr.ErrTooMany) {
		t.Errorf("third socket: %v", err)
	}
}

func TestFirstMessageMustBeBind(t *testing.T) {
	cfgs := startNodes(t, 1, nil)
	st, err := rdsdv1.NewDatagramsClient(dial(t, cfgs[0])).Open(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	m := &rdsdv1.ClientMessage{}
	m.SetSend(batchOf(1, netip.MustParseAddrPort("127.0.0.1:5"), "x"))
	st.Send(m)
	if _, err := st.Recv(); !errors.Is(rdsdv1.ErrorFromStatus(err), rdserr.ErrNotBound) {
		t.Errorf("got %v", err)
	}
}

func TestStreamEndsOnNonsense(t *testing.T) {
	cfgs := startNodes(t, 1, nil)
	local := cfgs[0].RDS.Addresses[0]
	again := &rdsdv1.ClientMessage{}
	again.SetBind(bindTo(local, 0))
	for name, m := range map[string]*rdsdv1.ClientMessage{"second bind": again, "empty": {}} {
		s := mustBind(t, cfgs[0], bindTo(local, 0))
		s.write(m)
		_, err := s.stream.Recv()
		if !errors.Is(rdsdv1.ErrorFromStatus(err), rdserr.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSendErrors(t *testing.T) {
	cfgs := startNodes(t, 1, nil)
	local := cfgs[0].RDS.Addresses[0]
	s := mustBind(t, cfgs[0], bindTo(local, 0))
	dst := netip.AddrPortFrom(local, 7)
	mixed := batchOf(3, dst, "good", strings.Repeat("x", 1<<20+1), strings.Repeat("x", 1<<20+1), "good")
	bad := &rdsdv1.Endpoint{}
	bad.SetAddress([]byte{1})
	badDest := batchOf(4, dst, "a", "b", "c")
	badDest.SetDestination([]*rdsdv1.Endpoint{client.EndpointPB(dst), bad})
	badDest.SetDestinationIndex([]uint32{0, 1, 0})
	short := batchOf(5, dst, "abc")
	short.SetLength([]uint32{4})
	for _, tc := range []struct {
		batch *rdsdv1.SendBatch
		want  string
		says  string
	}{
		{batchOf(1, netip.MustParseAddrPort("0.0.0.0:5"), "x"), "id 1 accepted 0, 0+1: " + rdserr.ErrDestination.Error(), "0.0.0.0"},
		{batchOf(2, netip.MustParseAddrPort("[fd00::1]:5"), "x", "y"), "id 2 accepted 0, 0+2: " + rdserr.ErrFamily.Error(), "fd00::1"},
		{mixed, "id 3 accepted 2, 1+2: " + rdserr.ErrTooLarge.Error(), "1048577"},
		{badDest, "id 4 accepted 2, 1+1: " + rdserr.ErrInvalid.Error(), "send.destination[1].address has 1 bytes"},
		{short, "id 5 accepted 0, 0+1: " + rdserr.ErrInvalid.Error(), "adds up to 4 bytes"},
		{batchOf(6, netip.AddrPortFrom(local, 1), "x"), "id 6 accepted 0, 0+1: " + rdserr.ErrInvalid.Error(), "reserved"},
		{batchOf(7, netip.MustParseAddrPort("10.9.9.9:5"), "x"), "id 7 accepted 0, 0+1: " + rdserr.ErrHostDown.Error(), "10.9.9.9"},
		{&rdsdv1.SendBatch{}, "id 0 accepted 0, 0+1: " + rdserr.ErrInvalid.Error(), "send.length is empty"},
	} {
		s.send(tc.batch)
		r := want(s, asResult)
		if got := resultString(r); got != tc.want {
			t.Errorf("got  %s\nwant %s", got, tc.want)
		}
		if len(r.GetErrors()) > 0 && !strings.Contains(r.GetErrors()[0].GetMessage(), tc.says) {
			t.Errorf("%q does not say %q", r.GetErrors()[0].GetMessage(), tc.says)
		}
	}
}

func TestFullBuffersAndWaiting(t *testing.T) {
	cfgs := startNodes(t, 1, nil)
	local := cfgs[0].RDS.Addresses[0]
	nobody := netip.AddrPortFrom(netip.MustParseAddr("127.77.255.1"), 7)
	b := bindTo(local, 0)
	b.SetSendBufferBytes(8192)
	s := mustBind(t, cfgs[0], b)
	kib := strings.Repeat("k", 1024)
	s.send(batchOf(1, nobody, kib, kib, kib, kib, kib, kib, kib, kib, kib, kib))
	if got := resultString(want(s, asResult)); got != "id 1 accepted 8, 8+2: "+rdserr.ErrWouldBlock.Error() {
		t.Error(got)
	}
	timed := batchOf(2, nobody, kib, kib)
	timed.SetWait(true)
	timed.SetTimeoutNs(int64(20 * time.Millisecond))
	s.send(timed)
	if got := resultString(want(s, asResult)); got != "id 2 accepted 0, 0+2: "+rdserr.ErrTimeout.Error() {
		t.Error(got)
	}
	forever := batchOf(3, nobody, kib)
	forever.SetWait(true)
	s.send(forever)
	flush := func(id uint64, timeout time.Duration) {
		f := &rdsdv1.Flush{}
		f.SetId(id)
		f.SetTimeoutNs(int64(timeout))
		m := &rdsdv1.ClientMessage{}
		m.SetFlush(f)
		s.write(m)
	}
	flush(10, 20*time.Millisecond)
	if f := want(s, asFlush); f.GetId() != 10 || errno(f.GetErrno()) != syscall.ETIMEDOUT || f.GetInFlight() != 8 {
		t.Errorf("flush: %v", f)
	}
	flush(11, 0)
	c := &rdsdv1.Cancel{}
	c.SetId(20)
	c.SetDestination(client.EndpointPB(nobody))
	m := &rdsdv1.ClientMessage{}
	m.SetCancel(c)
	s.write(m)
	if r := want(s, asCancel); r.GetId() != 20 || r.GetCancelled() != 8 || r.GetErrno() != 0 {
		t.Errorf("cancel: %v", r)
	}
	if got := resultString(want(s, asResult)); got != "id 3 accepted 0, 0+1: "+rdserr.ErrCanceled.Error() {
		t.Error(got)
	}
	if f := want(s, asFlush); f.GetId() != 11 || f.GetErrno() != 0 {
		t.Errorf("flush after cancel: %v", f)
	}
}

// A reader without credit congests its port; senders wait, are told, and go on.
func TestCreditCongestionAndMonitor(t *testing.T) {
	cfgs := startNodes(t, 2, nil)
	rb := &rdsdv1.Bind{}
	rb.SetLocal(client.EndpointPB(netip.AddrPortFrom(cfgs[1].RDS.Addresses[0], 4100)))
	rb.SetRecvBufferBytes(8192)
	rb.SetInitialCreditDatagrams(1)
	rb.SetInitialCreditBytes(1)
	b := mustBind(t, cfgs[1], rb)
	a := mustBind(t, cfgs[0], bindTo(cfgs[0].RDS.Addresses[0], 0))
	mon := &rdsdv1.Monitor{}
	mon.SetMask(1 << (4100 % 64))
	mon.SetClearEvents(true)
	m := &rdsdv1.ClientMessage{}
	m.SetMonitor(mon)
	a.write(m)
	kib := strings.Repeat("k", 1024)
	sent, refused := 0, false
	for deadline := time.Now().Add(10 * time.Second); !refused; {
		if time.Now().After(deadline) {
			t.Fatal("never congested")
		}
		a.send(batchOf(1, b.local, kib))
		r := want(a, asResult)
		sent += int(r.GetAccepted())
		refused = len(r.GetErrors()) > 0 && errno(r.GetErrors()[0].GetErrno()) == syscall.ENOBUFS
	}
	if got, _ := b.recv(1); got[0] != kib {
		t.Error("the first datagram did not come with a credit of one byte")
	}
	q := &rdsdv1.CongestedQuery{}
	q.SetId(5)
	q.SetDestination(client.EndpointPB(b.local))
	m = &rdsdv1.ClientMessage{}
	m.SetCongested(q)
	a.write(m)
	if r := want(a, asCongested); r.GetId() != 5 || !r.GetCongested() {
		t.Errorf("congested: %v", r)
	}
	pk := &rdsdv1.Peek{}
	pk.SetId(6)
	m = &rdsdv1.ClientMessage{}
	m.SetPeek(pk)
	b.write(m)
	if r := want(b, asPeek); !r.GetAvailable() || r.GetNextBytes() != 1024 || r.GetQueuedDatagrams() == 0 {
		t.Errorf("peek: %v", r)
	}
	waits := batchOf(7, b.local, "at last")
	waits.SetWait(true)
	a.send(waits)
	c := &rdsdv1.Credit{}
	c.SetDatagrams(1 << 20) // more than the sender's buffer holds, which a busy machine fills before it hears of the congestion
	c.SetBytes(1 << 30)
	m = &rdsdv1.ClientMessage{}
	m.SetCredit(c)
	b.write(m)
	got, _ := b.recv(sent) // sent-1 more, and the one that waited
	if last := got[len(got)-1]; last != "at last" {
		t.Errorf("last of %d is %q", len(got), last)
	}
	if r := want(a, asResult); r.GetId() != 7 || r.GetAccepted() != 1 {
		t.Errorf("waiting send: %s", resultString(r))
	}
	freed, cleared := false, false
	for !freed || !cleared {
		ev := want(a, asCongestion)
		freed = freed || ev.GetFreedMask() == 1<<(4100%64)
		for _, x := range ev.GetChange() {
			cleared = cleared || !x.GetCongested() && x.GetDestination().GetPort() == 4100
		}
	}
}

func TestCloseGivesThePortBack(t *testing.T) {
	cfgs := startNodes(t, 1, nil)
	local := cfgs[0].RDS.Addresses[0]
	s := mustBind(t, cfgs[0], bindTo(local, 4200))
	s.stream.CloseSend()
	if _, err := s.stream.Recv(); err == nil || err.Error() != "EOF" {
		t.Errorf("after closing: %v", err)
	}
	mustBind(t, cfgs[0], bindTo(local, 4200))
}

func TestStopClosesSocketsWithAReason(t *testing.T) {
	cfg := testConfig(t)
	n, err := New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	stop := startNode(t, n)
	s := mustBind(t, cfg, bindTo(cfg.RDS.Addresses[0], 0))
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	if c := want(s, asClosing); errno(c.GetErrno()) != syscall.ESHUTDOWN {
		t.Errorf("closing: %v", c)
	}
	if _, err := s.stream.Recv(); !errors.Is(rdsdv1.ErrorFromStatus(err), rdserr.ErrShutdown) {
		t.Errorf("status: %v", err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// A node may have addresses of both families; sockets do not mix them.
func TestBothFamilies(t *testing.T) {
	v6 := netip.IPv6Loopback()
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skip("no IPv6 on this machine: ", err)
	} else {
		l.Close()
	}
	cfgs := startNodes(t, 1, func(c *config.Config) { c.RDS.Addresses = append(c.RDS.Addresses, v6) })
	for _, a := range cfgs[0].RDS.Addresses {
		s := mustBind(t, cfgs[0], bindTo(a, 4600))
		s.send(batchOf(1, s.local, "to myself at "+a.String()))
		if got, from := s.recv(1); got[0] != "to myself at "+a.String() || from[0] != s.local {
			t.Errorf("received %q from %v", got, from)
		}
	}
}
