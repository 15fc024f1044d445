package rdstools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"
)

// The control connection: the active side connects and sends its options, one
// byte each way says go, and closing it ends the run. Nothing else is sent.

// runActive connects, negotiates and runs the tasks.
func (s *stress) runActive(ctx context.Context) error {
	if s.showParams != 0 {
		s.printParams()
	}
	c, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if s.recvAddr.IsUnspecified() {
		s.recvAddr = addrPortOf(c.LocalAddr()).Addr()
	}
	if _, err := c.Write(s.options.append(nil)); err != nil {
		return fmt.Errorf("cannot send the options to the other side: %w", err)
	}
	fmt.Fprintln(s.out, "negotiated options, tasks will start in 2 seconds")
	g, err := s.bindTasks(ctx)
	if err != nil {
		return err
	}
	defer g.close()
	if _, err := c.Write([]byte{1}); err != nil {
		return fmt.Errorf("cannot send to the other side: %w", err)
	}
	if err := readGo(c); err != nil {
		return err
	}
	return s.drive(ctx, g, c)
}

// connect dials the passive side, retrying as often as --connect-retries says.
func (s *stress) connect(ctx context.Context) (net.Conn, error) {
	d := net.Dialer{Timeout: 30 * time.Second}
	if !s.recvAddr.IsUnspecified() {
		d.LocalAddr = &net.TCPAddr{IP: s.recvAddr.AsSlice()}
	}
	to := netip.AddrPortFrom(s.sendAddr, s.port)
	fmt.Fprintf(s.out, "connecting to %s", to)
	for try := uint32(0); ; try++ {
		c, err := d.DialContext(ctx, "tcp4", to.String())
		if err == nil {
			fmt.Fprintln(s.out)
			return c, nil
		}
		var errno syscall.Errno
		if try == 0 && errors.As(err, &errno) {
			fmt.Fprintf(s.out, ": %s", capital(errno.Error()))
		}
		retry := errno == syscall.ECONNREFUSED || errno == syscall.EHOSTUNREACH || errno == syscall.ENETUNREACH
		if !retry || try >= s.connectRetry {
			fmt.Fprintln(s.out)
			return nil, fmt.Errorf("connect to %s failed: %w (is rds-stress running there, without -s?)", to, err)
		}
		if try == 0 {
			fmt.Fprint(s.out, " - retrying")
		}
		fmt.Fprint(s.out, ".")
		if err := pause(ctx, s.second); err != nil {
			return nil, err
		}
	}
}

// runPassive waits for one active side and runs the tasks it asks for.
func (s *stress) runPassive(ctx context.Context) error {
	own := s.recvAddr
	l, err := new(net.ListenConfig).Listen(ctx, "tcp4", net.JoinHostPort(own.String(), strconv.Itoa(int(s.port))))
	if err != nil {
		return fmt.Errorf("cannot wait for connections: %w", err)
	}
	fmt.Fprintf(s.out, "waiting for incoming connection on %s:%d\n", own, s.port)
	stop := context.AfterFunc(ctx, func() { l.Close() })
	c, err := l.Accept()
	stop()
	l.Close() // one run a process, as in the old tool
	if err != nil {
		return errors.Join(ctx.Err(), err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	fmt.Fprintf(s.out, "accepted connection from %s", addrPortOf(c.RemoteAddr()))
	if own.IsUnspecified() {
		own = addrPortOf(c.LocalAddr()).Addr()
		fmt.Fprintf(s.out, " on %s", addrPortOf(c.LocalAddr()))
	}
	fmt.Fprintln(s.out)
	o, err := readOptions(c)
	if err != nil {
		return err
	}
	// What the active side receives on is what we send to.
	o.sendAddr, o.recvAddr = o.recvAddr, own
	s.options = *o
	g, err := s.bindTasks(ctx)
	if err != nil {
		return err
	}
	defer g.close()
	if err := readGo(c); err != nil {
		return err
	}
	if _, err := c.Write([]byte{1}); err != nil {
		return fmt.Errorf("cannot send to the other side: %w", err)
	}
	fmt.Fprintln(s.out, "negotiated options, tasks will start in 2 seconds")
	return s.drive(ctx, g, c)
}

func readGo(c net.Conn) error {
	var b [1]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return errors.New("the other side closed the control connection before the start; its messages say why")
		}
		return fmt.Errorf("cannot receive from the other side: %w", err)
	}
	return nil
}

func (s *stress) printParams() {
	fmt.Fprintln(s.out, "Options:")
	for _, p := range []struct {
		name  string
		value uint32
	}{{"Tasks", uint32(s.tasks)}, {"Req size", s.reqSize}, {"ACK size", s.ackSize}, {"RDMA size", s.rdmaSize}} {
		fmt.Fprintf(s.out, "  %-10s %-7d\n", p.name, p.value)
	}
	fmt.Fprintf(s.out, "  %-10s (defaults)\n\n", "RDMA opts")
}

func addrPortOf(a net.Addr) netip.AddrPort {
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
