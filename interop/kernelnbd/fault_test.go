package kernelnbd

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
)

// TestStoreErrors: errors of the store reach whoever used the disk; after a
// failed sync no later one succeeds.
func TestStoreErrors(t *testing.T) {
	guest(t, func(t *testing.T) {
		f := blk.NewFault(blk.NewVolatile(memory(t, blk.MemOptions{Size: 8 << 20}), 1), 1)
		d := attach(t, f, 1, nil)
		raw := d.raw()
		write := func(off int64) error { _, err := raw.WriteAt(sector('x'), off); return err }
		read := func(off int64) error { _, err := raw.ReadAt(sector(0), off); return err }

		f.Add(blk.Rule{Ops: blk.Ops(blk.OpRead), Off: 1 << 20, Len: 4096, Err: blk.ErrMedium})
		f.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Off: 2 << 20, Len: 4096, Err: blk.ErrNoSpace})
		for what, v := range map[string]struct {
			err  error
			want error
		}{
			"read":               {read(0), nil},
			"write":              {write(0), nil},
			"bad read":           {read(1 << 20), syscall.EIO},
			"write to the same":  {write(1 << 20), nil},
			"write without room": {write(2 << 20), syscall.EIO},
			"read of the same":   {read(2 << 20), nil},
			"sync":               {raw.Sync(), nil},
		} {
			if !errors.Is(v.err, v.want) {
				t.Errorf("%s: %v, want %v", what, v.err, v.want)
			}
		}

		f.Add(blk.Rule{Ops: blk.Ops(blk.OpFlush), Count: 1, Err: blk.ErrMedium})
		for i := range 3 {
			if err := write(0); err != nil {
				t.Error(err)
			}
			if err := raw.Sync(); !errors.Is(err, syscall.EIO) {
				t.Errorf("sync %d after one that failed: %v, want EIO", i, err)
			}
		}
	})
}

// TestPowerCut: what was synced is there after a power cut, whatever became of
// the rest, and the journal makes the file system whole.
func TestPowerCut(t *testing.T) {
	guest(t, func(t *testing.T) {
		r := rand.New(rand.NewSource(max(*seed, 1)))
		for round := range 6 {
			v := blk.NewVolatile(memory(t, blk.MemOptions{Size: 24 << 20}), r.Int63())
			d := attach(t, v, 1, nil)
			if got := d.queue("queue/write_cache"); got != "write back" {
				t.Errorf("write_cache: %q", got)
			}
			d.mkfs()
			dir, unmount := d.mount("")
			var synced atomic.Int64
			stopped := make(chan error, 1)
			go func() { stopped <- writeFiles(dir, &synced) }()
			least := 3 + r.Int63n(30)
			until(t, "files are synced", 10*time.Second, func() bool { return synced.Load() >= least })
			time.Sleep(time.Duration(r.Intn(20)) * time.Millisecond)
			lost := v.Unsynced()
			if err := v.PowerCut(); err != nil {
				t.Fatal(err)
			}
			err := <-stopped
			if !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.EROFS) {
				t.Errorf("the writer ended with %v", err)
			}
			unmount()
			d.close()
			v.Restore()

			d = attach(t, v, 1, nil)
			dir, unmount = d.mount("")
			for i := range synced.Load() {
				name := fmt.Sprint("file", i)
				if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(b, content(i)) {
					t.Errorf("%s of %d synced ones: %d bytes, %v", name, synced.Load(), len(b), err)
				}
			}
			unmount()
			d.fsck()
			d.close()
			t.Logf("round %d: %d files were synced, %d sectors were not", round, synced.Load(), lost)
		}
	})
}

// writeFiles writes files and syncs each, until that fails. It begins again at
// the first one's neighbours when there are many, so that the disk does not fill.
func writeFiles(dir string, synced *atomic.Int64) error {
	for i := int64(0); ; i++ {
		if i >= 200 {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("scratch", i%8)), content(i), 0o600); err != nil {
				return err
			}
			continue
		}
		if err := writeFile(filepath.Join(dir, fmt.Sprint("file", i)), content(i)); err != nil {
			return err
		}
		synced.Store(i + 1)
	}
}

// content of a file, by its number.
func content(i int64) []byte {
	r := rand.New(rand.NewSource(i))
	b := make([]byte, 1+r.Intn(40<<10))
	r.Read(b)
	return b
}
