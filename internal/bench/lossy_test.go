package bench

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/roce"
)

// A network that loses, made of a filter at the socket that receives: netem does the same to
// what a device sends, but not every kernel has it, and it takes root. Both see what the
// sender's kernel hands over in one piece, a packet or a burst of up to fifteen of them, and
// lose it as a whole.

// How one loses.
const (
	lossMessage = "message" // each message of the socket with the same chance, as netem does
	lossPacket  = "packet"  // a burst with the chance that one of its packets is lost
)

// lossy calls open, which opens the socket of a device of RoCEv2, and has the socket lose
// what the arguments say. The error is in failed.
func (r *role) lossy(open func(), failed *error) {
	open()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		*failed = err
		return
	}
	for _, e := range list {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if sa, err := unix.Getsockname(fd); err != nil {
			continue // no socket, or the directory that was read
		} else if in, ok := sa.(*unix.SockaddrInet4); ok && in.Port == roce.Port {
			*failed = loseAt(fd, r.Loss, r.LossOf)
			return
		}
	}
	*failed = fmt.Errorf("no socket of port %d", roce.Port)
}

// loseAt attaches a filter that loses so many of what arrives.
func loseAt(fd int, share float64, of string) error {
	const (
		random = 0xfffff038 // SKF_AD_OFF + SKF_AD_RANDOM
		packet = 4096       // bytes of one, about
	)
	least := uint32(share * math.MaxUint32)
	// What is in X is the chance of 2^32.
	prog := []unix.SockFilter{{Code: unix.BPF_LDX | unix.BPF_IMM, K: least}}
	if of == lossPacket {
		prog = []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_LEN},
			{Code: unix.BPF_ALU | unix.BPF_DIV | unix.BPF_K, K: packet},
			{Code: unix.BPF_ALU | unix.BPF_ADD | unix.BPF_K, K: 1},
			{Code: unix.BPF_ALU | unix.BPF_MUL | unix.BPF_K, K: least},
			{Code: unix.BPF_MISC | unix.BPF_TAX},
		}
	}
	prog = append(prog,
		unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: random},
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_X, Jt: 1},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K},                    // lost
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: math.MaxUint32}, // whole
	)
	f := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		uintptr(unsafe.Pointer(&f)), unsafe.Sizeof(f), 0)
	if errno != 0 {
		return os.NewSyscallError("setsockopt SO_ATTACH_FILTER", errno)
	}
	return nil
}
