package rdsd

import (
	"context"
	"fmt"
	"testing"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

func dgram(text string) Datagram { return Datagram{Addr: peerAddr, Payload: []byte(text)} }

func TestRecvOrderAndSlices(t *testing.T) {
	_, _, s, st := bindFake(t)
	st.push(dgram("one"), Datagram{Addr: otherAddr}, dgram("three"))
	st.push(dgram("four"))
	ctx := testContext(t)
	first, err := s.Recv(ctx)
	if err != nil || string(first.Payload) != "one" || first.Addr != peerAddr {
		t.Fatalf("%v %v", first, err)
	}
	// A received payload is the application's: appending to it must not reach
	// the next one.
	_ = append(first.Payload, "XXXXX"...)
	var rest []Datagram
	for len(rest) < 3 {
		into := make([]Datagram, 8) // they are kept
		n, err := s.RecvBatch(ctx, into)
		if err != nil || n == 0 {
			t.Fatalf("%d %v", n, err)
		}
		rest = append(rest, into[:n]...)
	}
	if len(rest[0].Payload) != 0 || rest[0].Addr != otherAddr || string(rest[1].Payload) != "three" || string(rest[2].Payload) != "four" {
		t.Errorf("%v", rest)
	}
}

// Credit comes back in halves of the window.
func TestRecvCredit(t *testing.T) {
	_, _, s, st := bindFake(t, WithRecvWindow(4, 1000))
	ctx := testContext(t)
	recv := func(n int) {
		for range n {
			if _, err := s.Recv(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	credit := func(datagrams uint32, bytes uint64) {
		t.Helper()
		c := st.next().GetCredit()
		if c.GetDatagrams() != datagrams || c.GetBytes() != bytes {
			t.Errorf("credit %v, want %d datagrams, %d bytes", c, datagrams, bytes)
		}
	}
	st.push(dgram("a"), dgram("bb"), dgram("ccc"), dgram("dddd"))
	recv(1)
	st.wantIdle(s, "a quarter of the window is no reason for credit")
	recv(1)
	credit(2, 3)
	recv(2)
	credit(2, 7)
	st.push(Datagram{Addr: peerAddr, Payload: make([]byte, 500)})
	recv(1)
	credit(1, 500) // half of the bytes
}

func TestBindSendsWindow(t *testing.T) {
	d := newFakeDaemon(t)
	c, _ := Dial(d.path)
	defer c.Close()
	done := goErr(func() error {
		_, err := c.Bind(testContext(t), localAddr, WithRecvWindow(7, 900), WithSendBuffer(1), WithRecvBuffer(2), WithLabel("me"))
		return err
	})
	st, bind := d.accept()
	if bind.GetInitialCreditDatagrams() != 7 || bind.GetInitialCreditBytes() != 900 ||
		bind.GetSendBufferBytes() != 1 || bind.GetRecvBufferBytes() != 2 || bind.GetLabel() != "me" {
		t.Errorf("%v", bind)
	}
	st.sendBound(bound(bind))
	if err := waitErr(t, done); err != nil {
		t.Fatal(err)
	}
	st.answerClose()
}

func TestRecvContextEnds(t *testing.T) {
	_, _, s, st := bindFake(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := goErr(func() error { _, err := s.Recv(ctx); return err })
	cancel()
	wantErr(t, waitErr(t, done), rdserr.ErrCanceled, context.Canceled)
	st.push(dgram("still there"))
	if d, err := s.Recv(testContext(t)); err != nil || string(d.Payload) != "still there" {
		t.Fatalf("%v %v", d, err)
	}
}

// Several readers share what comes; none is left asleep beside a datagram.
func TestRecvManyReaders(t *testing.T) {
	_, _, s, st := bindFake(t)
	const n = 50
	got := make(chan string, n)
	for range 5 {
		go func() {
			for range n / 5 {
				d, err := s.Recv(context.Background())
				if err != nil {
					got <- err.Error()
					return
				}
				got <- string(d.Payload)
			}
		}()
	}
	var all []Datagram
	for i := range n {
		all = append(all, dgram(fmt.Sprint(i)))
	}
	st.push(all...)
	seen := map[string]bool{}
	for range n {
		seen[<-got] = true
	}
	if len(seen) != n || !seen["0"] || !seen["49"] {
		t.Errorf("%d different datagrams, want %d", len(seen), n)
	}
}

func TestAll(t *testing.T) {
	_, _, s, st := bindFake(t)
	st.push(dgram("a"), dgram("b"))
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	var got []string
	var last error
	for d, err := range s.All(ctx) {
		if last = err; err != nil {
			break
		}
		if got = append(got, string(d.Payload)); len(got) == 2 {
			cancel()
		}
	}
	wantErr(t, last, context.Canceled)
	if fmt.Sprint(got) != "[a b]" {
		t.Error(got)
	}
}

func TestPeekSize(t *testing.T) {
	_, _, s, st := bindFake(t)
	type peeked struct {
		n   int
		ok  bool
		err error
	}
	c := make(chan peeked, 1)
	go func() {
		n, ok, err := s.PeekSize(testContext(t))
		c <- peeked{n, ok, err}
	}()
	m := st.next()
	r := &rdsdv1.PeekResult{}
	r.SetId(m.GetPeek().GetId())
	r.SetAvailable(true)
	r.SetNextBytes(9)
	sm := &rdsdv1.ServerMessage{}
	sm.SetPeekResult(r)
	st.send(sm)
	if p := <-c; p != (peeked{9, true, nil}) {
		t.Errorf("%+v", p)
	}
}
