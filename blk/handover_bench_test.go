package blk

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// spinDone is a Completer as a reactor is one: whoever waits looks on.
type spinDone struct{ n atomic.Int64 }

func (d *spinDone) Complete(batch []*Request) { d.n.Add(int64(len(batch))) }

// BenchmarkWriteHandover is what a buffered write of 4 KiB costs when a worker
// does it, beside the same system call in place, which a reactor may not make.
func BenchmarkWriteHandover(b *testing.B) {
	path := b.TempDir() + "/volume"
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, 1<<20); err != nil {
		b.Fatal(err)
	}
	f, err := OpenFile(path, FileOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 4096)
	b.Run("in place", func(b *testing.B) {
		for i := range b.N {
			if _, err := unix.Pwrite(fd, buf, int64(i%256)<<12); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, depth := range []int{1, 32} {
		b.Run(fmt.Sprintf("worker/depth=%d", depth), func(b *testing.B) {
			done := &spinDone{}
			reqs := make([]Request, depth)
			batch := make([]*Request, depth)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for i := 0; i < b.N; i += depth {
				for j := range reqs {
					reqs[j] = Request{Op: OpWrite, Off: uint64((i+j)%256) << 12, Len: 4096, Buf: buf, Queue: done}
					batch[j] = &reqs[j]
				}
				want := done.n.Load() + int64(depth)
				f.Submit(batch)
				for done.n.Load() < want {
					unix.RawSyscallNoError(unix.SYS_SCHED_YIELD, 0, 0, 0)
				}
			}
		})
	}
}
