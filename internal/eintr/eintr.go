package eintr

import "golang.org/x/sys/unix"

// Again makes a system call until no signal interrupts it: the runtime sends signals to its
// own threads, and some file systems (FUSE, network ones) let those interrupt an open or a
// change of size, which are no signals for the caller.
func Again(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

// Open is unix.Open in that way.
func Open(path string, flags int, mode uint32) (fd int, err error) {
	err = Again(func() error {
		fd, err = unix.Open(path, flags, mode)
		return err
	})
	return fd, err
}
