package bench

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// The bare way through one daemon: application, ring, a daemon that copies
// records from ring to ring, ring, application. Three processes on two
// processors, where the two-process ping-pong has one each: what that costs is
// in here and in no protocol.

var roleCopier = register("local relay daemon", runCopier)

// localRelay starts three processes and returns the second application.
func (w *world) localRelay(a args, first, second string) (*proc, error) {
	one, err := w.newApp(a)
	if err != nil {
		return nil, err
	}
	two, err := w.newApp(a)
	if err != nil {
		return nil, err
	}
	// The daemon has one bell: both applications ring the first one's.
	if _, err := w.role(roleCopier, a, one.tx, one.rx, two.tx, two.rx, one.bell); err != nil {
		return nil, err
	}
	if _, err := w.role(first, a, one.tx, one.rx, one.bell); err != nil {
		return nil, err
	}
	return w.role(second, a, two.tx, two.rx, one.bell)
}

// localTrip measures round trips through it, localWay datagrams one way.
func localTrip(bytes int) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(d)
		defer w.close()
		ping, err := w.localRelay(args{Bytes: bytes, Spin: spinFor}, roleEcho, rolePing)
		if err != nil {
			return sample{}, err
		}
		return w.window(ping, wordCount, d)
	}
}

func localWay(bytes int) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(d)
		defer w.close()
		sink, err := w.localRelay(wayArgs(bytes), roleSource, roleSink)
		if err != nil {
			return sample{}, err
		}
		return w.window(sink, wordCount, d)
	}
}

// runCopier copies in one thread, both ways. Files: rings from and to the first
// application, from and to the second, bell.
func runCopier(r *role) error {
	if err := r.lockThread(); err != nil {
		return err
	}
	var rings [4]*ring
	for i := range rings {
		var err error
		if rings[i], err = mapRing(r.fd(i), ringSize(r.Bytes)); err != nil {
			return err
		}
	}
	bell := r.fd(4)
	from := [2]*consumer{{ring: rings[0]}, {ring: rings[2]}}
	to := [2]*producer{{ring: rings[3]}, {ring: rings[1]}}
	idle := idler{budget: r.Spin}
	for {
		moved := false
		for i := range from {
			moved = copySpan(from[i], to[i]) || moved
		}
		switch {
		case moved:
			idle.busy()
		case idle.idle():
			for i := range from {
				atomic.StoreUint32(from[i].asleep, onBell)
				atomic.StoreUint32(to[i].full, onBell)
			}
			for i := range from {
				moved = copySpan(from[i], to[i]) || moved
			}
			fds := [1]unix.PollFd{{Fd: int32(bell), Events: unix.POLLIN}}
			if !moved {
				poll(fds[:])
			}
			for i := range from {
				atomic.StoreUint32(from[i].asleep, awake)
				atomic.StoreUint32(to[i].full, awake)
			}
			if fds[0].Revents != 0 {
				var b [8]byte
				unix.Read(bell, b[:])
			}
			idle.busy()
		}
	}
}

// copyMax is what is copied at once: the reader begins while the rest comes.
const copyMax = 64 << 10

// copySpan copies the whole records that are there and have room.
func copySpan(from *consumer, to *producer) bool {
	span := from.span()
	if len(span) == 0 {
		return false
	}
	most := min(len(span), max(copyMax, firstRecord(span)))
	n := wholeRecords(span, min(most, to.room(most)))
	if n == 0 {
		return false
	}
	copy(to.at(to.pos, n), span[:n])
	to.pos += uint64(n)
	to.publish(to.pos)
	from.consume(n)
	return true
}

func firstRecord(span []byte) int { return recBytes(int(binary.LittleEndian.Uint32(span))) }

// wholeRecords is how many bytes of a span the records take that end within most.
func wholeRecords(span []byte, most int) int {
	n := 0
	for n < most {
		size := firstRecord(span[n:])
		if n+size > most {
			break
		}
		n += size
	}
	return n
}
