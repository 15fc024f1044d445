package agent

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"
)

// TestAgent: both ends in one process. In a guest it is TestGuest of test/vm.
func TestAgent(t *testing.T) {
	host, guest := net.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Serve(guest, errors.New("half a machine")) }() // ends with the pipe
	c := NewClient(host)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := c.Ready(ctx); err == nil || err.Error() != "half a machine" {
		t.Errorf("a guest that is not ready: %v", err)
	}
	out, err := c.Run(ctx, []string{"A=b"}, "sh", "-c", "echo $A; exit 7")
	var exit *ExitError
	if out != "b\n" || !errors.As(err, &exit) || exit.Code != 7 {
		t.Errorf("exit 7: %q, %v", out, err)
	}
	if _, err := c.Run(ctx, nil, "/no/such"); !errors.As(err, &exit) || !strings.Contains(exit.Error(), "no such file") {
		t.Errorf("no such program: %v", err)
	}
	var said locked
	j, err := c.Start(&said, nil, "sh", "-c", "echo begun; sleep 100")
	if err != nil {
		t.Fatal(err)
	}
	for said.String() != "begun\n" {
		if ctx.Err() != nil {
			t.Fatalf("output while it runs: %q", said.String())
		}
		time.Sleep(time.Millisecond)
	}
	if err := j.Kill(); err != nil {
		t.Error(err)
	}
	if err := j.Wait(ctx); !errors.As(err, &exit) || !strings.Contains(exit.Why, "killed") {
		t.Errorf("killed: %v", err)
	}
	if j, err = c.Start(&said, nil, "sleep", "100"); err != nil {
		t.Fatal(err)
	}
	if err := host.Close(); err != nil {
		t.Error(err)
	}
	<-ended
	if err := j.Wait(ctx); !errors.Is(err, ErrGone) {
		t.Errorf("a guest that is gone: %v", err)
	}
}
