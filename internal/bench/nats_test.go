package bench

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// NATS, where nats-server is installed: an application at either of two servers
// that a leaf connection joins. The client is a few lines of its text protocol;
// what it writes is packed, and it keeps at most natsWindow messages under way,
// because a server drops whom it finds slow.

const (
	natsWindow = 64 << 10
	natsAck    = 4 << 10 // messages the receiver acknowledges at once
)

var (
	roleNATSSend = register("NATS sender", runNATSSend)
	roleNATSRecv = register("NATS receiver", runNATSRecv)
	roleNATSPing = register("NATS ping", runNATSPing)
	roleNATSEcho = register("NATS echo", runNATSEcho)
)

// natsPair measures the second role's count; the first one is at the other server.
func natsPair(first, second string) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		binary, err := findProgram("nats-server", "/usr/sbin")
		if err != nil {
			return sample{}, skip("NATS: not installed")
		}
		w := newWorld(d)
		defer w.close()
		dir, err := w.tempDir()
		if err != nil {
			return sample{}, err
		}
		hub, err1 := freePort()
		leaf, err2 := freePort()
		edge, err3 := freePort()
		if err := errors.Join(err1, err2, err3); err != nil {
			return sample{}, err
		}
		for i, conf := range []string{
			fmt.Sprintf("listen: 127.0.0.1:%d\nleafnodes { listen: 127.0.0.1:%d }\n", hub, leaf),
			fmt.Sprintf("listen: 127.0.0.1:%d\nleafnodes { remotes = [ { url: \"nats-leaf://127.0.0.1:%d\" } ] }\n", edge, leaf),
		} {
			path := filepath.Join(dir, strconv.Itoa(i))
			if err := os.WriteFile(path, []byte(conf), 0o600); err != nil {
				return sample{}, err
			}
			if _, err := w.start("nats-server", exec.Command(binary, "-c", path), nil); err != nil {
				return sample{}, err
			}
		}
		a := args{Bytes: 64, Collector: true, Target: fmt.Sprint("127.0.0.1:", hub)}
		if _, err := w.role(first, a); err != nil {
			return sample{}, err
		}
		a.Target = fmt.Sprint("127.0.0.1:", edge)
		p, err := w.role(second, a)
		if err != nil {
			return sample{}, err
		}
		return w.window(p, wordCount, d)
	}
}

// findProgram looks in PATH and where Debian puts servers.
func findProgram(name string, dirs ...string) (string, error) {
	path, err := exec.LookPath(name)
	for _, d := range dirs {
		if err != nil {
			path, err = exec.LookPath(filepath.Join(d, name))
		}
	}
	return path, err
}

// natsConn is a client.
type natsConn struct {
	r  *bufio.Reader
	w  *bufio.Writer
	mu sync.Mutex // of w, while greet runs
}

// natsDial connects as soon as the server is there, and subscribes.
func natsDial(r *role, subject string) (*natsConn, error) {
	var c net.Conn
	var err error
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if c, err = net.Dial("tcp", r.Target); err == nil {
			break
		}
		if time.Since(begun) > 10*time.Second {
			return nil, err
		}
	}
	n := &natsConn{r: bufio.NewReaderSize(c, 64<<10), w: bufio.NewWriterSize(c, 64<<10)}
	if _, err := n.r.ReadSlice('\n'); err != nil { // INFO
		return nil, err
	}
	fmt.Fprintf(n.w, "CONNECT {\"verbose\":false,\"pedantic\":false}\r\nSUB %s 1\r\n", subject)
	return n, n.w.Flush()
}

func (n *natsConn) publish(subject string, p []byte) {
	n.w.WriteString("PUB ")
	n.w.WriteString(subject)
	n.w.WriteByte(' ')
	n.w.Write(strconv.AppendInt(n.w.AvailableBuffer(), int64(len(p)), 10))
	n.w.WriteString("\r\n")
	n.w.Write(p)
	n.w.WriteString("\r\n")
}

// next reads one message into p, which it returns cut to its length.
func (n *natsConn) next(p []byte) ([]byte, error) {
	for {
		line, err := n.r.ReadSlice('\n')
		if err != nil {
			return nil, err
		}
		switch {
		case bytes.HasPrefix(line, []byte("MSG ")):
			line = bytes.TrimRight(line, "\r\n")
			size, err := strconv.Atoi(string(line[bytes.LastIndexByte(line, ' ')+1:]))
			if err != nil || size > len(p) {
				return nil, fmt.Errorf("NATS said %q", line)
			}
			if _, err := io.ReadFull(n.r, p[:size]); err != nil {
				return nil, err
			}
			_, err = n.r.Discard(2)
			return p[:size], err
		case bytes.HasPrefix(line, []byte("PING")):
			n.mu.Lock()
			n.w.WriteString("PONG\r\n")
			err := n.w.Flush()
			n.mu.Unlock()
			if err != nil {
				return nil, err
			}
		case bytes.HasPrefix(line, []byte("-ERR")):
			return nil, fmt.Errorf("NATS said %q", line)
		}
	}
}

// tell publishes one message at once.
func (n *natsConn) tell(subject string, p []byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.publish(subject, p)
	return n.w.Flush()
}

// greet tells subject so until the first message comes, which it returns: what
// is published before anybody listens is lost.
func (n *natsConn) greet(subject string, p []byte) ([]byte, error) {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // ends with the first message
		defer close(done)
		for {
			n.tell(subject, natsHello)
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	b, err := n.next(p)
	close(stop)
	<-done
	return b, err
}

var natsHello, natsOK = []byte("hello"), []byte("ok")

func runNATSSend(r *role) error {
	n, err := natsDial(r, "back")
	if err != nil {
		return err
	}
	p, in := make([]byte, r.Bytes), make([]byte, r.Bytes)
	if _, err := n.next(in); err != nil { // the receiver is there
		return err
	}
	for sent, acked := uint64(0), uint64(0); ; {
		for range natsAck {
			stamp(p, sent)
			n.publish("there", p)
			sent++
		}
		for sent-acked >= natsWindow {
			if err := n.w.Flush(); err != nil {
				return err
			}
			b, err := n.next(in)
			if err != nil {
				return err
			}
			if bytes.Equal(b, natsOK) {
				acked += natsAck
			}
		}
	}
}

func runNATSRecv(r *role) error {
	n, err := natsDial(r, "there")
	if err != nil {
		return err
	}
	p := make([]byte, r.Bytes)
	b, err := n.greet("back", p)
	for seq := uint64(0); ; seq++ {
		if err != nil {
			return err
		}
		if err := checkStamp(b, r.Bytes, seq); err != nil {
			return err
		}
		r.board.set(wordCount, seq+1)
		if (seq+1)%natsAck == 0 {
			if err := n.tell("back", natsOK); err != nil {
				return err
			}
		}
		b, err = n.next(p)
	}
}

func runNATSPing(r *role) error {
	n, err := natsDial(r, "back")
	if err != nil {
		return err
	}
	p, in := make([]byte, r.Bytes), make([]byte, r.Bytes)
	if _, err := n.greet("there", in); err != nil {
		return err
	}
	for seq := uint64(0); ; seq++ {
		begun := time.Now()
		stamp(p, seq)
		if err := n.tell("there", p); err != nil {
			return err
		}
		b, err := n.next(in)
		for err == nil && bytes.Equal(b, natsHello) {
			b, err = n.next(in)
		}
		if err == nil {
			err = checkStamp(b, r.Bytes, seq)
		}
		if err != nil {
			return err
		}
		r.board.record(time.Since(begun))
		r.board.set(wordCount, seq+1)
	}
}

func runNATSEcho(r *role) error {
	n, err := natsDial(r, "there")
	if err != nil {
		return err
	}
	p := make([]byte, r.Bytes)
	for {
		b, err := n.next(p)
		if err != nil {
			return err
		}
		if err := n.tell("back", b); err != nil {
			return err
		}
	}
}
