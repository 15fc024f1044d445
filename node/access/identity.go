package access

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/config"
)

// Identify asks the kernel who is at the other end.
func Identify(conn net.Conn) (config.Identity, error) {
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return config.Identity{UID: config.NobodyID, GID: config.NobodyID, Remote: true}, nil
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return config.Identity{}, err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, credErr); err != nil {
		return config.Identity{}, fmt.Errorf("peer credentials: %w", err)
	}
	return config.Identity{UID: cred.Uid, GID: cred.Gid, PID: cred.Pid, ForeignUser: base.ForeignUser(cred.Uid), ForeignGroup: base.ForeignGroup(cred.Gid)}, nil
}

// OfUser is the identity of whom no more is known than the user, who is the kernel's answer.
func OfUser(uid uint32) config.Identity {
	return config.Identity{UID: uid, GID: config.NobodyID, ForeignUser: base.ForeignUser(uid), ForeignGroup: true}
}
