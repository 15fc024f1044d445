package bench

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/shm"
)

// Parts: what single steps cost that are there for safety, each against the bare
// step that would do without. One thread of this process, so that nothing but the step counts.

func init() {
	programs["rdsd, a client's doorbell"] = partAlarm
	programs["an eventfd written and read"] = partEventfd
	programs["rdsd, memory taken and given back"] = partAccount
	programs["rdsd, a datagram's memory noted and forgotten"] = partHold
	programs["an atomic counter, up and down"] = partAtomic
	allRows = append(allRows,
		row{name: "part-doorbell", what: "a client's doorbell, rung under its own guard and answered, against an eventfd", ours: "rdsd, a client's doorbell",
			metric: nanos, base: "an eventfd written and read", most: true},
		row{name: "part-account", what: "memory of one kind taken from the accountant and given back, against one atomic counter",
			ours: "rdsd, memory taken and given back", metric: nanos, base: "an atomic counter, up and down", most: true},
		row{name: "part-account-datagram", what: "the same for what the datagrams of a step took, which is only noted as it ends", ours: "rdsd, a datagram's memory noted and forgotten",
			metric: nanos, base: "an atomic counter, up and down", most: true},
	)
}

var nanos = metric{"ns", func(s sample) float64 { return 1e9 / s.rate }}

// step repeats f for d.
func step(d time.Duration, f func() error) (sample, error) {
	n, begun := 0, time.Now()
	for time.Since(begun) < d {
		for range 1000 {
			if err := f(); err != nil {
				return sample{}, err
			}
		}
		n += 1000
	}
	return sample{rate: float64(n) / time.Since(begun).Seconds()}, nil
}

func partAlarm(d time.Duration) (sample, error) {
	a, client, err := shm.NewAlarm()
	if err != nil {
		return sample{}, err
	}
	defer unix.Close(client)
	defer a.Close()
	return step(d, func() error {
		a.Ring()
		shm.Drain(client)
		return nil
	})
}

func partEventfd(d time.Duration) (sample, error) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return sample{}, err
	}
	defer unix.Close(fd)
	b := make([]byte, 8)
	b[0] = 1
	return step(d, func() error {
		if _, err := unix.Write(fd, b); err != nil {
			return err
		}
		_, err := unix.Read(fd, b)
		return err
	})
}

func partAccount(d time.Duration) (sample, error) {
	a := quota.New(1<<30, func() int64 { return 0 }).Account(quota.User(1))
	defer a.Close()
	return step(d, func() error {
		err := a.Take(quota.Control, 4096)
		a.Give(quota.Control, 4096)
		return err
	})
}

func partHold(d time.Duration) (sample, error) {
	a := quota.New(1<<30, func() int64 { return 0 }).Account(quota.User(1))
	defer a.Close()
	return step(d, func() error {
		a.Hold(256)
		a.Hold(-256)
		return nil
	})
}

func partAtomic(d time.Duration) (sample, error) {
	var n atomic.Int64
	return step(d, func() error {
		n.Add(256)
		n.Add(-256)
		return nil
	})
}
