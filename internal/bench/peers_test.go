package bench

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Programs of others in C are compiled when they are first needed, against
// libraries that are installed or that CFLAGS, LDFLAGS and LD_LIBRARY_PATH name.
var compiled struct {
	sync.Mutex
	dir  string
	done map[string]string // by source; "": does not compile
}

// compile makes a program of testdata and returns its path.
func compile(source string, libs ...string) (string, error) {
	c := &compiled
	c.Lock()
	defer c.Unlock()
	if path, ok := c.done[source]; ok {
		if path == "" {
			return "", errors.New("it does not compile")
		}
		return path, nil
	}
	if c.dir == "" {
		dir, err := os.MkdirTemp("", "rdsd-bench-cc-")
		if err != nil {
			return "", err
		}
		c.dir, c.done = dir, map[string]string{}
	}
	c.done[source] = ""
	path := filepath.Join(c.dir, strings.TrimSuffix(source, ".c"))
	arg := append([]string{"-O2", "-Wall"}, strings.Fields(os.Getenv("CFLAGS"))...)
	arg = append(arg, "-o", path, filepath.Join("testdata", source))
	arg = append(arg, strings.Fields(os.Getenv("LDFLAGS"))...)
	if out, err := exec.Command("cc", append(arg, libs...)...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("cc %s: %v: %s", source, err, out)
	}
	c.done[source] = path
	return path, nil
}

// removeCompiled deletes what compile made.
func removeCompiled() {
	compiled.Lock()
	defer compiled.Unlock()
	os.RemoveAll(compiled.dir)
	compiled.dir, compiled.done = "", nil
}

// zmqWay measures PUSH to PULL over TCP.
func zmqWay(bytes int) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		binary, err := compile("zmq.c", "-lzmq")
		if err != nil {
			return sample{}, skip("ZeroMQ: not installed (libzmq with its header, libzmq3-dev)")
		}
		port, err := freePort()
		if err != nil {
			return sample{}, err
		}
		w := newWorld(d)
		defer w.close()
		var pull *proc
		for _, mode := range []string{"push", "pull"} {
			cmd := exec.Command(binary, mode, fmt.Sprint("tcp://127.0.0.1:", port), strconv.Itoa(bytes))
			if pull, err = w.foreign("ZeroMQ "+mode, cmd); err != nil {
				return sample{}, err
			}
		}
		return w.window(pull, wordCount, d)
	}
}

// foreign starts a program that is not ours and has a board as descriptor 3.
func (w *world) foreign(name string, cmd *exec.Cmd) (*proc, error) {
	b, err := newBoard()
	if err != nil {
		return nil, err
	}
	cmd.ExtraFiles = []*os.File{b.f}
	return w.start(name, cmd, b)
}
