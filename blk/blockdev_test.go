package blk_test

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/blk/blktest"
)

// loopDevice makes a block device of a sparse file.
func loopDevice(t *testing.T, blockSize uint32) string {
	t.Helper()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("elsewhere: no loop devices here: %v", err)
	}
	defer control.Close()
	back, err := os.OpenFile(tempFile(t, blktest.Size), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer back.Close()
	for range 20 { // another process may be faster
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			t.Skipf("elsewhere: no loop device is free: %v", err)
		}
		path := fmt.Sprintf("/dev/loop%d", n)
		dev, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Skipf("elsewhere: %v", err)
		}
		config := unix.LoopConfig{Fd: uint32(back.Fd()), Size: blockSize, Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &config)
		if err == nil {
			t.Cleanup(func() { dev.Close() }) // the last one to close it frees it
			return path
		}
		dev.Close()
		if err != unix.EBUSY {
			t.Skipf("elsewhere: loop device: %v", err)
		}
	}
	t.Skip("elsewhere: no loop device could be had")
	return ""
}

// TestBlockDevice: the same suite, and what the kernel says of the device.
func TestBlockDevice(t *testing.T) {
	for _, size := range []uint32{512, 4096} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			blktest.Run(t, func(t *testing.T) blk.Device {
				f, err := blk.OpenFile(loopDevice(t, size), blk.FileOptions{})
				if err != nil {
					t.Fatal(err)
				}
				return f
			})
			f, err := blk.OpenFile(loopDevice(t, size), blk.FileOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			i := f.Info()
			if i.Size != blktest.Size || i.LogicalBlock != size || i.PhysicalBlock < size || i.MaxDiscard == 0 || i.DiscardGranularity == 0 {
				t.Errorf("%+v", i)
			}
			if said, err := os.ReadFile("/sys/dev/block/" + numberOf(t, f.Name()) + "/queue/physical_block_size"); err == nil {
				if fmt.Sprintf("%d\n", i.PhysicalBlock) != string(said) {
					t.Errorf("physical blocks of %d; the kernel says %s", i.PhysicalBlock, said)
				}
			}
			if err := f.Resize(2 * blktest.Size); err == nil {
				t.Error("a block device was resized")
			}
			b := bytes.Repeat([]byte{1}, 1<<20)
			if err := blk.WriteAt(f, b, 0, blk.FUA); err != nil {
				t.Fatal(err)
			}
			if err := blk.Discard(f, 0, 1<<20, blk.FUA); err != nil {
				t.Errorf("discard: %v", err)
			}
			if err := blk.ReadAt(f, b, 0); err != nil || len(bytes.Trim(b, "\x00")) != 0 {
				t.Errorf("a loop device reads as zeroes where it was discarded (%v)", err)
			}
		})
	}
}

// numberOf is a device's number as /sys writes it.
func numberOf(t *testing.T, path string) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
}
