package agent

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// afterExit is how long the output of a command is waited for once the command has ended: a
// process that it left behind may hold the pipe.
const afterExit = 2 * time.Second

// Serve says that the guest is ready, or that setUp failed, and runs what the host asks for
// until the stream ends. What runs then is killed.
func Serve(stream io.ReadWriter, setUp error) error {
	s := &server{out: json.NewEncoder(stream), running: map[int]*os.Process{}}
	first := reply{}
	if setUp != nil {
		first.Err = setUp.Error()
	}
	s.say(first)
	in := json.NewDecoder(stream)
	for {
		var r request
		if err := in.Decode(&r); err != nil {
			s.killAll()
			return err
		}
		if r.Kill {
			s.kill(r.ID)
			continue
		}
		s.run(r)
	}
}

// server is the guest's end. A reply is one call of the encoder, under mu.
type server struct {
	mu      sync.Mutex
	out     *json.Encoder       // guarded by mu
	running map[int]*os.Process // guarded by mu
}

func (s *server) say(r reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A host that has gone is noticed where requests are read.
	_ = s.out.Encode(r)
}

// run starts a command. It has a session of its own, so that kill reaches what it starts.
func (s *server) run(r request) {
	cmd := exec.Command(r.Argv[0], r.Argv[1:]...)
	cmd.Env = append(os.Environ(), r.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.WaitDelay = afterExit
	w := &output{s, r.ID}
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		s.say(reply{ID: r.ID, Done: true, Code: -1, Err: err.Error()})
		return
	}
	s.mu.Lock()
	s.running[r.ID] = cmd.Process
	s.mu.Unlock()
	go func() { // ends with the command
		err := cmd.Wait()
		s.mu.Lock()
		delete(s.running, r.ID)
		s.mu.Unlock()
		done := reply{ID: r.ID, Done: true, Code: cmd.ProcessState.ExitCode()}
		var status *exec.ExitError
		if err != nil && !errors.As(err, &status) && !errors.Is(err, exec.ErrWaitDelay) {
			done.Err = err.Error()
		} else if done.Code < 0 {
			done.Err = cmd.ProcessState.String()
		}
		s.say(done)
	}()
}

func (s *server) kill(id int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.running[id]; p != nil {
		_ = syscall.Kill(-p.Pid, syscall.SIGKILL)
	}
}

func (s *server) killAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.running {
		_ = syscall.Kill(-p.Pid, syscall.SIGKILL)
	}
}

// output passes on what a command writes.
type output struct {
	s  *server
	id int
}

func (w *output) Write(b []byte) (int, error) {
	w.s.say(reply{ID: w.id, Out: b})
	return len(b), nil
}
