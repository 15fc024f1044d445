package bench

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// Aeron, where its C media driver and client library are installed: an
// application at either of two drivers, UDP between them. Drivers and
// applications yield while they have nothing to do and never sleep.

// aeronTrip measures round trips.
func aeronTrip(bytes int) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(d)
		defer w.close()
		there, err1 := freePort()
		back, err2 := freePort()
		if err := errors.Join(err1, err2); err != nil {
			return sample{}, err
		}
		p, err := w.aeron(bytes, 8<<10, [2]string{"pong", "ping"}, [2]int{back, there}, [2]int{there, back})
		if err != nil {
			return sample{}, err
		}
		return w.window(p, wordCount, d)
	}
}

// aeronWay measures messages one way, packed into datagrams of mtu bytes.
func aeronWay(bytes, mtu int) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(d)
		defer w.close()
		port, err := freePort()
		if err != nil {
			return sample{}, err
		}
		p, err := w.aeron(bytes, mtu, [2]string{"send", "recv"}, [2]int{port, 0}, [2]int{0, port})
		if err != nil {
			return sample{}, err
		}
		return w.window(p, wordCount, d)
	}
}

// aeronIPC measures round trips, or messages one way, between two applications of one driver,
// which moves none of them: the ring is shared by the two.
func aeronIPC(bytes int, modes [2]string) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(d)
		defer w.close()
		driver, app, err := aeronPrograms()
		if err != nil {
			return sample{}, err
		}
		dir, err := w.aeronDriver(driver, 8<<10)
		if err != nil {
			return sample{}, err
		}
		there, back := "aeron:ipc#1001", "aeron:ipc#1002"
		if modes[0] == "send" {
			back = "-"
		}
		var last *proc
		for i, to := range [2]string{back, there} {
			from := [2]string{there, back}[i]
			if modes[0] == "send" { // the first one sends
				to, from = [2]string{there, "-"}[i], [2]string{"-", there}[i]
			}
			if last, err = w.foreign("Aeron "+modes[i], exec.Command(app, modes[i], dir, to, from, strconv.Itoa(bytes))); err != nil {
				return sample{}, err
			}
		}
		return w.window(last, wordCount, d)
	}
}

// aeronPrograms finds the driver and compiles the application.
func aeronPrograms() (driver, app string, err error) {
	if driver, err = findProgram("aeronmd", "/usr/local/bin"); err != nil {
		return "", "", skip("Aeron: not installed (aeronmd)")
	}
	if app, err = compile("aeron.c", "-laeron"); err != nil {
		return "", "", skip("Aeron: its C client library is not installed")
	}
	return driver, app, nil
}

// aeronDriver starts a driver, and returns its directory.
func (w *world) aeronDriver(driver string, mtu int) (dir string, err error) {
	if dir, err = os.MkdirTemp("/dev/shm", "rdsd-bench-aeron-"); err != nil {
		return "", err
	}
	w.dirs = append(w.dirs, dir)
	dir = filepath.Join(dir, "driver")
	cmd := exec.Command(driver)
	cmd.Env = append(os.Environ(), "AERON_DIR="+dir, "AERON_THREADING_MODE=SHARED", "AERON_SHARED_IDLE_STRATEGY=yield",
		// The largest UDP payload that is a multiple of Aeron's alignment.
		"AERON_MTU_LENGTH="+strconv.Itoa(min(mtu, 65504)), "AERON_IPC_MTU_LENGTH=65504", "AERON_SOCKET_SO_SNDBUF=2097152", "AERON_SOCKET_SO_RCVBUF=2097152",
		"AERON_RCV_INITIAL_WINDOW_LENGTH=2097152", "AERON_PRINT_CONFIGURATION=false")
	if _, err := w.start("aeronmd", cmd, nil); err != nil {
		return "", err
	}
	return dir, w.until("aeronmd", func() bool { _, err := os.Stat(filepath.Join(dir, "cnc.dat")); return err == nil })
}

// aeron starts two drivers, each with an application that publishes to a port
// and subscribes to one (0: does not), and returns the second application.
func (w *world) aeron(bytes, mtu int, modes [2]string, to, from [2]int) (*proc, error) {
	driver, app, err := aeronPrograms()
	if err != nil {
		return nil, err
	}
	var last *proc
	for i, mode := range modes {
		dir, err := w.aeronDriver(driver, mtu)
		if err != nil {
			return nil, err
		}
		channel := func(port int) string {
			if port == 0 {
				return "-"
			}
			return fmt.Sprint("aeron:udp?endpoint=127.0.0.1:", port)
		}
		if last, err = w.foreign("Aeron "+mode, exec.Command(app, mode, dir, channel(to[i]), channel(from[i]), strconv.Itoa(bytes))); err != nil {
			return nil, err
		}
	}
	return last, nil
}
