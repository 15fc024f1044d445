package blk

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestInterruptedResize: an export gets its new size although signals interrupt the
// calls that open it and change it.
func TestInterruptedResize(t *testing.T) {
	left := 3
	interrupt := func() bool { left--; return left >= 0 }
	was := ftruncate
	defer func() { ftruncate = was }()
	ftruncate = func(fd int, n int64) error {
		if interrupt() {
			return unix.EINTR
		}
		return was(fd, n)
	}
	f, _ := testFile(t, 1<<20, FileOptions{})
	if err := f.Resize(2 << 20); err != nil || f.Info().Size != 2<<20 {
		t.Errorf("%v, %d bytes", err, f.Info().Size)
	}
	if left >= 0 {
		t.Error("no call was interrupted")
	}
}

// TestShorterFileStaysShort: a write that was let in before a file was made shorter, and is
// carried out after that, does not make it long again.
func TestShorterFileStaysShort(t *testing.T) {
	const short, long = 1 << 20, 2 << 20
	for what, r := range map[string]*Request{
		"a write":          {Op: OpWrite, Off: long - 4096, Len: 4096, Buf: make([]byte, 4096)},
		"a write with FUA": {Op: OpWrite, Flags: FUA, Off: short - 4096, Len: 8192, Buf: make([]byte, 8192)},
		"zeroes written":   {Op: OpWriteZeroes, Off: short, Len: 4096},
	} {
		t.Run(what, func(t *testing.T) {
			f, path := testFile(t, long, FileOptions{})
			f.refused.punch.Store(true)
			f.refused.zeroRange.Store(true)
			done := make(chan error, 1)
			r.Queue = CompleteFunc(func(r *Request) { done <- r.Err })
			truncate, write := ftruncate, pwrite
			defer func() { ftruncate, pwrite = truncate, write }()
			ftruncate = func(fd int, n int64) error {
				if f.shortening.TryRLock() {
					f.shortening.RUnlock()
					t.Error("writes go on while the file is made shorter")
				}
				err := truncate(fd, n)
				f.Submit([]*Request{r}) // it is long still, as far as anybody knows
				return err
			}
			pwrite = func(fd int, b []byte, off int64) (int, error) {
				if f.shortening.TryLock() {
					f.shortening.Unlock()
					t.Error("a file can be made shorter within a write to it")
				}
				return write(fd, b, off)
			}
			if err := f.Resize(short); err != nil {
				t.Fatal(err)
			}
			if err := <-done; !errors.Is(err, ErrRange) {
				t.Errorf("it ended with %v; want %v", err, ErrRange)
			}
			if st, err := os.Stat(path); err != nil || st.Size() != short {
				t.Errorf("the file has %d bytes; want %d (%v)", st.Size(), short, err)
			}
			ftruncate = truncate
			if err := WriteAt(f, make([]byte, 4096), short-4096, 0); err != nil {
				t.Errorf("a write within it: %v", err)
			}
		})
	}
}
