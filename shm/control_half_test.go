package shm

import (
	"bytes"
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// halves is a connection whose reader waits patience for the rest of a message, what it
// was charged, and a way to send it one packet.
func halves(t *testing.T, patience time.Duration) (c *Conn, charged *int, packet func(msg []byte)) {
	t.Helper()
	l, err := Listen(filepath.Join(t.TempDir(), "s"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	other, err := Dial(context.Background(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() })
	c, err = l.AcceptConn()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	charged = new(int)
	c.Charge(MaxMessage, patience, func(n int) error { *charged += n; return nil })
	return c, charged, func(msg []byte) {
		t.Helper()
		head, piece := packetOf(msg)
		if _, err := other.Write(append(head[:], piece...)); err != nil {
			t.Fatal(err)
		}
	}
}

// Who has sent a part of a message is waited for no longer than the patience there is, and
// the memory for it is given back.
func TestHalfAMessageIsNotWaitedFor(t *testing.T) {
	c, charged, packet := halves(t, 20*time.Millisecond)
	packet(make([]byte, MaxPiece+1))
	ended := make(chan error, 1)
	go func() {
		_, _, err := c.ReadMessage()
		ended <- err
	}()
	select {
	case err := <-ended:
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("half a message ends with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("half a message is waited for")
	}
	if *charged != 0 {
		t.Errorf("%d bytes are charged for nothing", *charged)
	}
}

// Patience is for the rest of a message: once that has come the reader waits for the next
// one without end.
func TestPatienceEndsWithTheMessage(t *testing.T) {
	const patience = 100 * time.Millisecond
	c, _, packet := halves(t, patience)
	want := bytes.Repeat([]byte("0123456789"), MaxPiece/10+1)
	packet(want)
	packet(want[MaxPiece:])
	if got, _, err := c.ReadMessage(); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes of %d, %v", len(got), len(want), err)
	}
	time.AfterFunc(2*patience, func() { packet([]byte("next")) })
	if got, _, err := c.ReadMessage(); err != nil || string(got) != "next" {
		t.Errorf("%q, %v", got, err)
	}
}
