package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// obeyed is text that terminals obey, and shells: others have chosen it.
const obeyed = "\x1b]0;mine\a\u009b31m\u202e$(touch mine)"

// asked are commands that show what others have chosen; each has what the fake daemon knows.
var asked = []string{
	"status", "info", "peers", "peers drop 10.0.0.2", "sockets", "sockets close 10.0.0.1:4000", "queue", "queue --summary", "counters", "counters --peer 10.0.0.2",
	"congestion", "congestion --watch", "congestion --history", "errors", "check", "check --format json", "config show --running", "doctor", "top -b -n1",
	"ping 10.0.0.2 -c 1 -i 0s", "ping 10.0.0.9 -c 1", "ping 10.0.0.7 -c 1 -i 0s", "cancel --from 10.0.0.1:4000 --to 10.0.0.3:0", "trace --count 2 --for 5s",
	"volume ls", "volume show disk", "volume show golden", "volume show v1", "volume info store:disk", "volume map store:one", "volume map store:one --or-existing", "volume remap v1",
	"volume export scratch --memory --size 1M", "volume unexport golden", "volume force-close disk linux", "volume resize disk 30G", "volume resize v1",
	"volume sessions", "volume sessions policy app-store rr", "volume sessions set app-store --unfenced now", "volume paths", "volume paths add app-store 10.1.0.1,10.1.0.7",
	"volume paths disconnect app-store 10.1.0.7", "volume events", "volume check", "volume check disk", "volume unmap v1", "volume unmap v1 --force",
	"send 10.0.0.2:4000 x", "recv --bind 4000", "stress --to 10.0.0.2:4000",
}

// spoil puts text behind every string of a message that may be somebody's.
func spoil(m protoreflect.Message, text string) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsList() && f.Kind() == protoreflect.StringKind:
			for l, k := m.Mutable(f).List(), 0; k < l.Len(); k++ {
				l.Set(k, protoreflect.ValueOfString(l.Get(k).String()+text))
			}
		case f.IsList() && f.Kind() == protoreflect.MessageKind:
			for l, k := m.Mutable(f).List(), 0; k < l.Len(); k++ {
				spoil(l.Get(k).Message(), text)
			}
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOfString(m.Get(f).String()+text))
		case f.Kind() == protoreflect.MessageKind && m.Has(f):
			spoil(m.Mutable(f).Message(), text)
		}
	}
}

// spoiled are answers to calls with text in them, and why they fail.
func spoiled(text string) []grpc.ServerOption {
	said := func(m any) any {
		c := proto.Clone(m.(proto.Message))
		spoil(c.ProtoReflect(), text+"\nforged")
		return c
	}
	why := func(err error) error {
		if err == nil {
			return nil
		}
		return fmt.Errorf("%w%s\nfurther%s", err, text, text)
	}
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			r, err := handle(ctx, req)
			if err != nil {
				return nil, why(err)
			}
			return said(r), nil
		}),
		grpc.ChainStreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			return why(handle(srv, spoiledStream{s, said}))
		}),
	}
}

type spoiledStream struct {
	grpc.ServerStream
	said func(any) any
}

func (s spoiledStream) SendMsg(m any) error { return s.ServerStream.SendMsg(s.said(m)) }

// TestNothingObeyedIsPrinted: whatever clients and other nodes call what they have, no command
// prints what a terminal obeys, in any form of output.
func TestNothingObeyedIsPrinted(t *testing.T) {
	for _, form := range []string{"", " --json", " -o tsv"} {
		socket := filepath.Join(t.TempDir(), "s")
		stop, err := serveFake(socket, spoiled(obeyed)...)
		if err != nil {
			t.Fatal(err)
		}
		shown := 0
		for _, c := range asked {
			code, out := runHostile(t, c+form, socket, "2s")
			if code == exitUsage && form != "" { // there is no such form of it
				continue
			}
			if i := strings.IndexFunc(out, func(r rune) bool {
				return unicode.In(r, unicode.Cf) || unicode.IsControl(r) && r != '\n' && (r != '\t' || form != " -o tsv")
			}); i >= 0 {
				t.Errorf("rdsd %s%s prints %q", c, form, out[max(i-60, 0):min(i+60, len(out))])
			}
			if strings.Contains(out, "\nforged") && !strings.HasPrefix(c, "config") { // which is shown as it is
				t.Errorf("rdsd %s%s has a line that is not its own: %q", c, form, out)
			}
			if strings.Contains(out, "touch mine") {
				shown++
			}
		}
		if shown < 8 {
			t.Errorf("with%q only %d commands show it at all", form, shown)
		}
		stop()
	}
}

func runHostile(t *testing.T, line, socket, timeout string) (code int, said string) {
	t.Helper()
	var out, errw bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	args := append(strings.Fields(line), "--socket", socket)
	if !strings.HasPrefix(line, "recv") {
		args = append(args, "--timeout", timeout)
	}
	code = run(ctx, args, strings.NewReader(""), &out, &errw)
	if ctx.Err() != nil {
		t.Errorf("rdsd %s does not end: %s%s", line, &out, &errw)
	}
	return code, out.String() + errw.String()
}

// TestDaemonThatDoesNotAnswer: what is at the socket and never answers costs a command its --timeout, whatever it asks; and
// what closes the connection, or knows none of the calls, is told in the exit code.
func TestDaemonThatDoesNotAnswer(t *testing.T) {
	old := grpc.NewServer() // of an age without any of the services
	for _, c := range []struct {
		what    string
		serve   func(net.Conn)
		timeout string
		code    int
	}{
		{"says nothing", func(c net.Conn) { io.Copy(io.Discard, c) }, "50ms", exitTimeout},
		{"closes", func(c net.Conn) { c.Close() }, "20s", exitUnreachable},
		{"is no daemon", func(c net.Conn) { io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n"); c.Close() }, "20s", exitUnreachable},
		{"is old", nil, "20s", exitFailed},
	} {
		socket := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		if c.serve == nil {
			go old.Serve(l) // ended by Stop
		} else {
			go accepted(l, c.serve)
		}
		for _, line := range append([]string{"bugreport " + filepath.Join(t.TempDir(), "r.tgz")}, asked...) {
			want := c.code
			switch {
			case line == "doctor": // asks no daemon
				continue
			case strings.HasPrefix(line, "check"): // a monitor's words
				if want = checkUnknown; c.code == exitUnreachable {
					want = checkCritical
				}
			}
			code, said := runHostile(t, line, socket, c.timeout)
			if late := c.code == exitTimeout && strings.Contains(said, "cannot reach"); code != want && !late { // nobody was let in so soon
				t.Errorf("rdsd %s of what %s: exit %d, want %d: %s", line, c.what, code, want, said)
			}
		}
		l.Close()
	}
	old.Stop()
}

// accepted has each connection of l served, until it is closed.
func accepted(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go serve(c) // ends with the connection, which its command closes
	}
}
