package demo

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// RDS ports of the applications.
const (
	portTalk   = 4001 // questions and answers
	portStream = 5001 // the one that congests
	portReport = 6001
)

// show is the applications at work.
type show struct {
	t    *teller
	a, b *site
	link *link
	disk *disk // nil until it is mapped; set before the table shows it

	questions, answers, stream, reports *flow

	all      []*flow
	reader   *gate // the reader of the stream
	mu       sync.Mutex
	states   map[string]string // guarded by mu; peer state by node name
	rtt      map[string]time.Duration
	congests uint64 // guarded by mu
	clears   uint64
	cuts     int // guarded by mu

	sockets []*rdsd.Socket
	senders sync.WaitGroup
	others  sync.WaitGroup
	stop    chan struct{} // closed: send no more
	quit    context.CancelFunc
}

// newShow binds the sockets and starts the applications.
func newShow(ctx context.Context, t *teller, a, b *site, l *link) (*show, error) {
	s := &show{t: t, a: a, b: b, link: l, reader: newGate(), states: map[string]string{}, rtt: map[string]time.Duration{}, stop: make(chan struct{})}
	bind := func(at *site, port uint16, label string, opts ...rdsd.BindOption) (*rdsd.Socket, error) {
		sock, err := at.client.Bind(ctx, netip.AddrPortFrom(at.addr, port), append(opts, rdsd.WithLabel(label))...)
		if err != nil {
			return nil, fmt.Errorf("application %q: %w", label, err)
		}
		s.sockets = append(s.sockets, sock)
		return sock, nil
	}
	var socks [6]*rdsd.Socket
	for i, w := range []struct {
		at    *site
		port  uint16
		label string
		opts  []rdsd.BindOption
	}{
		{a, portTalk, "asker", []rdsd.BindOption{rdsd.WithOutcomes()}},
		{b, portTalk, "answerer", []rdsd.BindOption{rdsd.WithOutcomes()}},
		{a, portStream, "stream", []rdsd.BindOption{rdsd.WithOutcomes()}},
		// A small buffer and window, so that it fills soon.
		{b, portStream, "reader", []rdsd.BindOption{rdsd.WithRecvBuffer(64 << 10), rdsd.WithRecvWindow(8, 8<<10)}},
		{b, portReport, "reporter", []rdsd.BindOption{rdsd.WithOutcomes()}},
		{a, portReport, "collector", nil},
	} {
		var err error
		if socks[i], err = bind(w.at, w.port, w.label, w.opts...); err != nil {
			return nil, err
		}
	}
	s.questions = newFlow("questions", socks[0], socks[1].LocalAddr(), 64)
	s.answers = newFlow("answers", socks[1], socks[0].LocalAddr(), 64)
	s.stream = newFlow("stream", socks[2], socks[3].LocalAddr(), 1024)
	s.reports = newFlow("reports", socks[4], socks[5].LocalAddr(), 200)
	s.all = []*flow{s.questions, s.answers, s.stream, s.reports}
	t.say("applications: A asks and B answers (port %d), A streams to B (port %d), B reports to A (port %d)", portTalk, portStream, portReport)

	run, quit := context.WithCancel(context.WithoutCancel(ctx))
	s.quit = quit
	for _, f := range s.all {
		s.others.Go(func() { f.count(run) })
	}
	s.others.Go(func() { s.ask(run, socks[0]) })
	s.others.Go(func() { s.answer(run, socks[1]) })
	s.others.Go(func() { s.read(run, socks[3], s.stream, s.reader) })
	s.others.Go(func() { s.read(run, socks[5], s.reports, nil) })
	s.senders.Go(func() { s.every(run, s.stream, 2*time.Millisecond) })
	s.senders.Go(func() { s.every(run, s.reports, 20*time.Millisecond) })
	for _, at := range []*site{a, b} {
		s.others.Go(func() { s.watchPeer(run, at) })
	}
	s.others.Go(func() { s.watchCongestion(run, b) })
	return s, nil
}

// every sends at an interval until told to stop.
func (s *show) every(ctx context.Context, f *flow, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
		refused := func() {
			s.t.say("A: %s refuses the next datagram: no buffer space (ENOBUFS). The sender waits for it to clear", f.to)
		}
		if err := f.send(ctx, refused); err != nil {
			if ctx.Err() == nil {
				s.t.say("sending %s failed: %v", f.what, err)
			}
			return
		}
	}
}

// ask sends a question, waits for its answer, and so on. It is the only
// reader of its socket, and counts the answers.
func (s *show) ask(ctx context.Context, sock *rdsd.Socket) {
	for {
		select {
		case <-s.stop:
			return
		default:
		}
		start := time.Now()
		if s.questions.send(ctx, nil) != nil {
			return
		}
		d, err := sock.Recv(ctx)
		if err != nil {
			return
		}
		s.answers.took(d.Payload)
		if took := time.Since(start); took > 300*time.Millisecond {
			s.t.say("A: answer %d came after %v, once the link was back; nothing was asked twice", s.answers.received.Load(), took.Round(10*time.Millisecond))
		}
		sleep(ctx, 50*time.Millisecond)
	}
}

func (s *show) answer(ctx context.Context, sock *rdsd.Socket) {
	for d, err := range sock.All(ctx) {
		if err != nil {
			return
		}
		s.questions.took(d.Payload)
		if s.answers.send(ctx, nil) != nil {
			return
		}
	}
}

func (s *show) read(ctx context.Context, sock *rdsd.Socket, f *flow, g *gate) {
	into := make([]rdsd.Datagram, 8)
	for {
		if g != nil && !g.pass(ctx) {
			return
		}
		n, err := sock.RecvBatch(ctx, into)
		if err != nil {
			return
		}
		for _, d := range into[:n] {
			f.took(d.Payload)
		}
	}
}

// end stops the senders, waits until every datagram has its outcome and was
// read, and gives the account.
func (s *show) end() Summary {
	s.link.set(true)
	s.reader.set(true)
	close(s.stop)
	var volume DiskAccount
	if s.disk != nil {
		volume = s.disk.end()
	}
	limit := time.NewTimer(10 * time.Second)
	defer limit.Stop()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	stopped := make(chan struct{})
	go func() { s.senders.Wait(); close(stopped) }() // ends with the senders, at the latest after quit
	for expired := false; !expired && !s.settled(stopped); {
		select {
		case <-poll.C:
		case <-limit.C:
			expired = true
		}
	}
	s.quit()
	s.senders.Wait()
	for _, sock := range s.sockets {
		sock.Close()
	}
	s.others.Wait()
	sum := s.summary()
	sum.Volume = volume
	return sum
}

func (s *show) settled(stopped <-chan struct{}) bool {
	select {
	case <-stopped:
	default:
		return false
	}
	for _, f := range s.all {
		if !f.settled() {
			return false
		}
	}
	// The talk is at rest between an answer and the next question only.
	return s.answers.received.Load() == s.questions.accepted.Load()
}
