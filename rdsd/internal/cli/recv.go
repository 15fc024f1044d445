package cli

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/rdsd/rdsd/rdsd/internal/dial"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

type recvOptions struct {
	bind     string
	count    uint64
	raw, hex bool
	timeout  time.Duration
}

func (a *app) recvCmd() *cobra.Command {
	var o recvOptions
	cmd := &cobra.Command{
		Use:   "recv --bind ADDR:PORT",
		Short: "receive datagrams on a port and print them",
		Long: `Bind ADDR:PORT and print what arrives, until --count datagrams were received or
Ctrl-C. --bind 4000 takes an address of the daemon.

By default each datagram is one line with its source, quoted when it is not
plain text; --raw writes the payloads alone, one after the other, --hex as hex
dumps, --json one object a line with the payload in base64.

--timeout is the longest wait for the next datagram; when it passes, the exit
code is 4.`,
		Example: `  rdsd recv --bind 10.0.0.2:4000
  rdsd recv --bind 4000 --count 1 --raw > file`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case o.bind == "":
				return usagef("--bind is missing: the ADDR:PORT to receive on, such as 10.0.0.2:4000, or a port alone")
			case o.raw && o.hex || a.json && (o.raw || o.hex):
				return usagef("--raw, --hex and --json are three forms of output: choose one")
			}
			return a.recv(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.bind, "bind", "", "the ADDR:PORT to receive on")
	f.Uint64Var(&o.count, "count", 0, "end after so many datagrams; 0 means never")
	f.BoolVar(&o.raw, "raw", false, "write payloads as they are")
	f.BoolVar(&o.hex, "hex", false, "write payloads as hex dumps")
	f.DurationVar(&o.timeout, "timeout", 0, "longest wait for the next datagram; 0 waits for ever")
	return cmd
}

func (a *app) recv(ctx context.Context, o recvOptions) error {
	local, err := parseLocal("--bind", o.bind)
	if err != nil {
		return err
	}
	c, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	sock, err := a.bindRecv(ctx, c, local)
	if err != nil {
		return err
	}
	defer sock.Close()
	if !a.json && !o.raw {
		fmt.Fprintf(a.err, "receiving on %s\n", sock.LocalAddr())
	}
	for n := uint64(0); o.count == 0 || n < o.count; n++ {
		d, err := recvWithin(ctx, sock, o.timeout)
		switch {
		case ctx.Err() != nil && o.count == 0:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, context.DeadlineExceeded):
			return withCode(exitTimeout, fmt.Errorf("nothing arrived on %s for %v (%s before)", sock.LocalAddr(), o.timeout, plural(n, "datagram")))
		case err != nil:
			return fmt.Errorf("receiving on %s: %w", sock.LocalAddr(), dial.Cause(err))
		}
		if err := a.printDatagram(d, o); err != nil {
			return err
		}
	}
	return nil
}

// bindRecv binds the socket of a command that receives, within --timeout. That of recv is about datagrams, and a.timeout
// the usual time.
func (a *app) bindRecv(ctx context.Context, c *rdsd.Client, local netip.AddrPort) (*rdsd.Socket, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	said := func(err error) error {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return withCode(exitTimeout, fmt.Errorf("the daemon has not answered for %v", a.timeout))
		}
		return dial.Cause(err)
	}
	local, err := chooseLocal(ctx, c, local, netip.Addr{})
	if err != nil {
		return nil, said(err)
	}
	s, err := c.Bind(ctx, local, rdsd.WithLabel("rdsd recv"))
	if err != nil {
		return nil, fmt.Errorf("cannot bind %s: %w", local, said(err))
	}
	return s, nil
}

func recvWithin(ctx context.Context, sock *rdsd.Socket, limit time.Duration) (rdsd.Datagram, error) {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	return sock.Recv(ctx)
}

type datagramView struct {
	From    netip.AddrPort `json:"from"`
	Bytes   int            `json:"bytes"`
	Payload []byte         `json:"payload"` // base64
	Text    string         `json:"text,omitempty"`
}

func (a *app) printDatagram(d rdsd.Datagram, o recvOptions) error {
	var err error
	switch {
	case a.json:
		v := datagramView{From: d.Addr, Bytes: len(d.Payload), Payload: d.Payload}
		if v.Payload == nil {
			v.Payload = []byte{}
		}
		if utf8.Valid(d.Payload) {
			v.Text = string(d.Payload)
		}
		return writeNDJSON(a.out, v)
	case o.raw:
		_, err = a.out.Write(d.Payload)
	case o.hex:
		_, err = fmt.Fprintf(a.out, "%s %d bytes\n%s", d.Addr, len(d.Payload), hex.Dump(d.Payload))
	default:
		_, err = fmt.Fprintf(a.out, "%s %d bytes: %s\n", d.Addr, len(d.Payload), printable(d.Payload))
	}
	return err
}

// printable shows a payload on one line that a terminal is safe with.
func printable(b []byte) string {
	const most = 1024
	tail := ""
	if len(b) > most {
		tail = fmt.Sprintf(" … (%d bytes more)", len(b)-most)
		b = b[:most]
	}
	s := strings.TrimRight(string(b), "\n")
	plain := utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) })
	if !plain {
		s = strconv.Quote(string(b))
	}
	return s + tail
}
