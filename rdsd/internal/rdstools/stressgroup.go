package rdstools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/rdsd/rdsd/rdsd/internal/dial"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// group is the tasks of one side and their goroutines.
type group struct {
	tasks  []*task
	wg     sync.WaitGroup
	failed chan error // first error of a task
}

// bindTasks binds every socket before the other side may send.
func (s *stress) bindTasks(ctx context.Context) (*group, error) {
	g := &group{failed: make(chan error, 1)}
	bytes := s.socketBytes()
	work := s.active || s.oneWay == 0
	for i := range s.tasks {
		local := netip.AddrPortFrom(s.recvAddr, s.port+1+i)
		sock, err := s.client.Bind(ctx, local, rdsd.WithSendBuffer(bytes), rdsd.WithRecvBuffer(bytes), rdsd.WithLabel("rds-stress"))
		if err != nil {
			g.close()
			if errors.Is(err, syscall.EADDRNOTAVAIL) {
				return nil, fmt.Errorf("cannot bind %s: %w; rdsd status shows the daemon's addresses, -r chooses one", local, dial.Cause(err))
			}
			return nil, fmt.Errorf("cannot bind %s: %w", local, dial.Cause(err))
		}
		t := newTask(&s.options, local, work)
		t.sock = sock
		g.tasks = append(g.tasks, t)
	}
	return g, nil
}

func (g *group) close() {
	for _, t := range g.tasks {
		t.sock.Close()
	}
}

// start runs fn for every task; g.wg waits for them, the first error goes to
// g.failed.
func (g *group) start(fn func(*task) error) {
	for _, t := range g.tasks {
		g.wg.Go(func() {
			if err := fn(t); err != nil {
				select {
				case g.failed <- err:
				default:
				}
			}
		})
	}
}

func (g *group) read() stats {
	var sum stats
	for _, t := range g.tasks {
		sum.add(t.read())
	}
	return sum
}

// drive releases the tasks, prints a row a second and the summary at the end:
// after the run time on the active side, when the control connection closes on
// the passive one, on an interrupt, or when a task fails.
func (s *stress) drive(ctx context.Context, g *group, control net.Conn) error {
	recvCtx, stopReceiving := context.WithCancel(context.WithoutCancel(ctx))
	sendCtx, stopSending := context.WithCancel(recvCtx)
	defer g.wg.Wait()
	defer stopReceiving()
	defer stopSending()
	closed := make(chan struct{})
	g.wg.Go(func() { // ends when the connection is closed, at the latest below
		defer close(closed)
		io.Copy(io.Discard, control)
	})
	defer control.Close()

	g.start(func(t *task) error { return t.receive(recvCtx, s.outlier) })
	g.start(func(t *task) error {
		if pause(sendCtx, 2*s.second) != nil {
			return nil
		}
		return t.send(sendCtx)
	})
	end, err := s.display(ctx, g, closed)
	if err != nil {
		return err
	}
	stopSending()
	control.Close()
	// What is on its way is still taken and counted.
	pause(ctx, s.second)
	s.summary(end)
	return nil
}

func (s *stress) outlier(rtt time.Duration) {
	if s.outliers > 0 && rtt > s.outliers {
		fmt.Fprintf(s.out, "Found RTT = 0x%x\n", rtt.Microseconds())
	}
}

// result is what the summary is made of.
type result struct {
	stats stats
	over  time.Duration
	cpu   float64
}

// display shows the start, then rows until the run ends.
func (s *stress) display(ctx context.Context, g *group, closed <-chan struct{}) (result, error) {
	cpu := cpuMeter{on: s.reportCPU}
	fmt.Fprint(s.out, "Starting up")
	tick := time.NewTicker(s.second)
	defer tick.Stop()
	for range 4 { // two to come up, two of burn-in
		select {
		case <-tick.C:
			fmt.Fprint(s.out, ".")
		case err := <-g.failed:
			fmt.Fprintln(s.out)
			return result{}, err
		case <-closed:
			fmt.Fprintln(s.out)
			return result{}, errors.New("the other side closed the control connection during the start")
		case <-ctx.Done():
			fmt.Fprintln(s.out)
			return result{}, ctx.Err()
		}
	}
	fmt.Fprintln(s.out)
	if s.showPerfdata != 0 {
		printPerfHeading(s.out)
	} else {
		printStressHeading(s.out)
	}
	cpu.percent()
	r, first := result{cpu: -1}, time.Now()
	start, last, lastTime := g.read(), g.read(), first
	var cpuTotal float64
	for rows := 1; ; rows++ {
		over := false
		select {
		case <-tick.C:
		case err := <-g.failed:
			return r, err
		case <-closed:
			if rows > 1 {
				return r, nil // no row for a part of a second
			}
			over = true
		case <-ctx.Done():
			over = true
		}
		now, total, percent := time.Now(), g.read(), cpu.percent()
		s.row(total.since(last), now.Sub(lastTime), percent)
		last, lastTime = total, now
		cpuTotal += percent
		r = result{total.since(start), now.Sub(first), cpuTotal / float64(rows)}
		if over || s.active && s.runTime != 0 && now.Sub(first) >= time.Duration(s.runTime)*s.second-s.second/10 {
			return r, nil
		}
	}
}

func (s *stress) row(st stats, over time.Duration, cpu float64) {
	switch {
	case s.summaryOnly != 0:
	case s.showPerfdata != 0:
		printPerfLine(s.out, &s.options, st, over, cpu)
	default:
		printStressLine(s.out, s.tasks, st, over, cpu, false)
	}
}

func (s *stress) summary(r result) {
	if s.summaryOnly == 0 {
		fmt.Fprintln(s.out, "---------------------------------------------")
	}
	printStressLine(s.out, s.tasks, r.stats, max(r.over, time.Millisecond), r.cpu, true)
	if s.showHistogram {
		printHistogram(s.out, r.stats)
	}
}
