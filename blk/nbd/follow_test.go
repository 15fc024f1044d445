package nbd

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
)

// stalled serves a device under two names, whose first write the device holds, and has a client
// send that, with more behind it.
func stalled(t *testing.T, behind ...[]byte) (s *Server, f *blk.Fault, socket string, first *client) {
	t.Helper()
	f = blk.NewFault(memory(t, 1<<20), 1)
	s, socket = serve(t, Options{MaxRequests: 1}, Export{Device: f}, Export{Name: "disk", Device: f})
	t.Cleanup(f.Release)
	f.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Count: 1, Stall: true})
	first = enter(t, socket, "", false)
	first.send(bytes.Join(append([][]byte{command(cmdWrite, 0, 1, 0, 512, fill512('a'))}, behind...), nil))
	waitFor(t, "the write to be held", func() bool { return f.Held() == 1 })
	return s, f, socket, first
}

// silent expects that the client gets no answer.
func (c *client) silent(what string) {
	c.t.Helper()
	c.nc.SetReadDeadline(time.Now().Add(3 * hangUpEvery / 2))
	if n, err := c.nc.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("%s: %d bytes, %v", what, n, err)
	}
	c.nc.SetReadDeadline(time.Now().Add(10 * time.Second))
}

// TestFollows: the write of a client that was killed is at the store still, and others of it are
// not read yet, when the next client writes to the same place: they do not come after that.
func TestFollows(t *testing.T) {
	_, f, socket, first := stalled(t, command(cmdWrite, 0, 2, 0, 512, fill512('a')))
	first.nc.Close()
	dropped := enter(t, socket, "disk", false) // killed before it was its turn
	dropped.send(command(cmdWrite, 0, 1, 0, 512, fill512('x')))
	dropped.nc.Close()
	c := enter(t, socket, "disk", false)
	c.send(command(cmdWrite, 0, 7, 0, 512, fill512('b')))
	c.silent("the second client's write")
	f.Release()
	if r := c.reply(0); r.cookie != 7 || r.value != 0 {
		t.Errorf("the second client's write: %v", r)
	}
	b := make([]byte, 512)
	if err := blk.ReadAt(f, b, 0); err != nil || b[0] != 'b' {
		t.Errorf("%q, %v", b[0], err)
	}
}

// TestFollowsNobody: a client whose connection goes on is not waited for, nor the client of
// another device.
func TestFollowsNobody(t *testing.T) {
	s, _, socket, first := stalled(t)
	if err := s.Add(Export{Name: "other", Device: memory(t, 1<<20)}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"disk", "other"} {
		c := enter(t, socket, name, false)
		c.send(command(cmdWrite, 0, 7, 512, 512, fill512('b')))
		if r := c.reply(0); r.cookie != 7 || r.value != 0 {
			t.Errorf("%s: %v", name, r)
		}
		first.nc.Close() // for the next
	}
}

// TestFollowsNoRead: what a client that was killed has with the device and does not change it keeps nobody waiting.
func TestFollowsNoRead(t *testing.T) {
	for what, at := range map[string][]byte{"read": command(cmdRead, 0, 1, 0, 512, nil), "flush": command(cmdFlush, 0, 1, 0, 0, nil)} {
		f := blk.NewFault(memory(t, 1<<20), 1)
		_, socket := serve(t, Options{}, Export{Device: f})
		t.Cleanup(f.Release)
		f.Add(blk.Rule{Ops: blk.Ops(blk.OpRead, blk.OpFlush), Count: 1, Stall: true})
		first := enter(t, socket, "", false)
		first.send(at)
		waitFor(t, "the "+what+" to be held", func() bool { return f.Held() == 1 })
		first.nc.Close()
		c := enter(t, socket, "", false)
		c.send(command(cmdWrite, 0, 7, 0, 512, fill512('b')))
		c.nc.SetReadDeadline(time.Now().Add(5 * time.Second))
		if r := c.reply(0); r.cookie != 7 || r.value != 0 {
			t.Errorf("after a %s: %v", what, r)
		}
		f.Release()
	}
}

// TestFollowEnds: a server that ends does not wait for the store with those who wait.
func TestFollowEnds(t *testing.T) {
	for what, end := range map[string]func(*Server) error{
		"Close":    (*Server).Close,
		"Shutdown": func(s *Server) error { return s.Shutdown(context.Background()) },
		"Leave":    func(s *Server) error { return s.Leave(context.Background()) },
	} {
		s, f, socket, first := stalled(t)
		first.nc.Close()
		c := enter(t, socket, "", false)
		c.send(command(cmdWrite, 0, 7, 0, 512, fill512('b')))
		c.silent(what)
		done := make(chan error, 1)
		go func() { done <- end(s) }()
		if what == "Shutdown" {
			if r := c.reply(0); r.cookie != 7 || r.value != errShutdown {
				t.Errorf("%s: %v", what, r)
			}
		}
		c.nc.SetReadDeadline(time.Now().Add(10 * time.Second))
		if n, err := c.nc.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %d bytes, %v", what, n, err)
		}
		f.Release()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if n := s.Stats().Requests; n != 1 {
			t.Errorf("%s: the device had %d requests", what, n)
		}
	}
}
