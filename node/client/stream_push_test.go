package client

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
)

// brittleStream is a server's stream that notes the kinds of the messages it is given and does not take the one at breaks.
type brittleStream struct {
	ctx    context.Context
	breaks int
	given  []string
}

func (b *brittleStream) Context() context.Context { return b.ctx }

func (b *brittleStream) RecvMsg(any) error { return io.EOF }

func (b *brittleStream) SendMsg(m any) error {
	kind := "datagrams"
	switch m := m.(type) {
	case *rdsdv1.ServerMessage:
		kind = m.WhichBody().String()
	case *outResult:
		kind = "result"
	}
	b.given = append(b.given, kind)
	if len(b.given)-1 == b.breaks {
		return errors.New("not written")
	}
	return nil
}

// sendToItself has a stream take a batch as its client would send it.
func sendToItself(t *testing.T, s *sockStream, b *rdsdv1.SendBatch) {
	t.Helper()
	m, in := &rdsdv1.ClientMessage{}, &inMsg{}
	m.SetSend(b)
	raw, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := in.unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)}); err != nil || !in.isBatch {
		t.Fatal("the batch was not taken as one:", err)
	}
	s.send(&in.batch)
	in.release()
}

// TestClosingOnlyBehindEverything holds that Closing is said behind all that a socket still had for its client, and not at all once one of
// these messages was lost: a client takes Closing as the word that it has seen every outcome there is.
func TestClosingOnlyBehindEverything(t *testing.T) {
	local := netip.MustParseAddr("127.0.0.1")
	for _, c := range []struct {
		name   string
		breaks int
		want   []string
	}{
		{"everything is written", -1, []string{"bound", "flush_result", "peek_result", "closing"}},
		{"the first reply is lost", 1, []string{"bound", "flush_result"}},
		{"the last reply is lost", 2, []string{"bound", "flush_result", "peek_result"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			eng := newTestEngine(local, rds.DefaultConfig())
			n := newWorld(t, config.Default(), func(netip.Addr) datagram.Engine { return eng })
			st := &brittleStream{ctx: t.Context(), breaks: c.breaks}
			s := newSockStream(n.clients, st, config.Identity{UID: 1})
			if err := s.bind(clienttest.BindTo(local, 0)); err != nil {
				t.Fatal(err)
			}
			defer s.close()
			flushed, peeked := &rdsdv1.ServerMessage{}, &rdsdv1.ServerMessage{}
			flushed.SetFlushResult(&rdsdv1.FlushResult{})
			peeked.SetPeekResult(&rdsdv1.PeekResult{})
			s.out = []any{flushed, peeked}
			s.sayClosing(rdserr.ErrClosed)
			if !slices.Equal(st.given, c.want) {
				t.Errorf("the stream was given %v, want %v", st.given, c.want)
			}
		})
	}
}

// TestAnswerBringsTheNewsItTakes: the reader, which writes what there is behind each message, may take the word that there is
// news before the pusher does. Then it writes the news: nobody else would.
func TestAnswerBringsTheNewsItTakes(t *testing.T) {
	local := netip.MustParseAddr("127.0.0.1")
	eng := newTestEngine(local, rds.DefaultConfig())
	n := newWorld(t, config.Default(), func(netip.Addr) datagram.Engine { return eng })
	st := &brittleStream{ctx: t.Context(), breaks: -1}
	s := newSockStream(n.clients, st, config.Identity{UID: 1})
	if err := s.bind(clienttest.BindTo(local, 0)); err != nil {
		t.Fatal(err)
	}
	defer s.close()
	sendToItself(t, s, clienttest.BatchOf(1, s.sock.Addr(), "to", "myself"))
	s.News()
	if err := s.answer(); err != nil {
		t.Fatal(err)
	}
	if want := []string{"bound", "result", "datagrams"}; !slices.Equal(st.given, want) {
		t.Errorf("the stream was given %v, want %v", st.given, want)
	}
	if len(s.news) != 0 {
		t.Error("there is news still, and nothing more to bring")
	}
}

// TestNewsBreakOff holds that a stream which loses a message is given nothing behind it, whichever of a socket's news it was: the answer to
// a batch, outcomes or datagrams. What was taken out of the receive queue for it is let go.
func TestNewsBreakOff(t *testing.T) {
	local := netip.MustParseAddr("127.0.0.1")
	whole := []string{"bound", "result", "outcomes", "datagrams", "closing"}
	for breaks := 1; breaks <= len(whole); breaks++ {
		eng := newTestEngine(local, rds.DefaultConfig())
		n := newWorld(t, config.Default(), func(netip.Addr) datagram.Engine { return eng })
		st := &brittleStream{ctx: t.Context(), breaks: breaks}
		s := newSockStream(n.clients, st, config.Identity{UID: 1})
		if err := s.bind(clienttest.BindTo(local, 0)); err != nil {
			t.Fatal(err)
		}
		b := clienttest.BatchOf(1, s.sock.Addr(), "to", "myself")
		b.SetWantOutcomes(true)
		sendToItself(t, s, b)
		s.sayClosing(rdserr.ErrClosed)
		if want := whole[:min(breaks+1, len(whole))]; !slices.Equal(st.given, want) {
			t.Errorf("message %d is lost: the stream was given %v, want %v", breaks, st.given, want)
		}
		if left := s.push.got.Len(); left != 0 {
			t.Errorf("message %d is lost: %d datagrams are held on to", breaks, left)
		}
		s.close()
	}
}

// TestPushWaitsForMemory: datagrams stay in their socket while there is no memory for
// messages to its client, and go when there is some, without any other news. When there is
// little, they go one at a time.
func TestPushWaitsForMemory(t *testing.T) {
	local := netip.MustParseAddr("127.0.0.1")
	eng := newTestEngine(local, rds.DefaultConfig())
	n := newWorld(t, config.Default(), func(netip.Addr) datagram.Engine { return eng })
	st := &brittleStream{ctx: t.Context(), breaks: -1}
	s := newSockStream(n.clients, st, config.Identity{UID: 1})
	if err := s.bind(clienttest.BindTo(local, 0)); err != nil {
		t.Fatal(err)
	}
	defer s.close()
	sendToItself(t, s, clienttest.BatchOf(1, s.sock.Addr(), "to", "myself"))

	other := n.deps.Memory.Account(quota.Holder{})
	defer other.Close()
	left := func(bytes int64) { other.Grow(quota.Peers, n.deps.Memory.Limit()-n.deps.Memory.Used()-bytes) }
	write := func() []string {
		t.Helper()
		st.given = nil
		if err := s.write(true); err != nil {
			t.Fatal(err)
		}
		return st.given
	}
	left(0)
	if got := write(); !slices.Equal(got, []string{"result"}) {
		t.Errorf("without memory the stream was given %v", got)
	}
	if _, queued := s.sock.Queue().Peek(); queued != 2 {
		t.Errorf("%d datagrams wait, want 2", queued)
	}
	select {
	case <-s.news:
		t.Error("it looks again at once")
	default:
	}
	left(100 << 10) // for one datagram, not for a batch
	await.Until(t, 5*time.Second, "it looks again", func() bool { return len(s.news) > 0 })
	<-s.news
	if got := write(); !slices.Equal(got, []string{"datagrams", "datagrams"}) {
		t.Errorf("with little memory the stream was given %v", got)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.later {
		t.Error("it is about to look again")
	}
}
