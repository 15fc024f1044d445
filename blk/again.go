package blk

import "golang.org/x/sys/unix"

// again makes a system call until no signal interrupts it: the runtime sends signals to
// its own threads, and some file systems (FUSE, network ones) let those end an open or a
// change of size, which nobody who asked for that has anything to do with.
func again(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

// open is unix.Open in that way.
func open(path string, flags int, mode uint32) (fd int, err error) {
	err = again(func() error {
		fd, err = unix.Open(path, flags, mode)
		return err
	})
	return fd, err
}
