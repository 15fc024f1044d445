package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/rdserr"
)

// An exit code of every command. The numbers are part of the interface:
// scripts depend on them.
type exitCode struct {
	code    int
	name    string
	meaning string
}

// Exit codes, as exitCodes documents them.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitUnreachable = 3
	exitTimeout     = 4
	exitBusy        = 5
	exitDenied      = 6
	exitIncomplete  = 7
	exitMissing     = 8
	exitExists      = 9
	exitInternal    = guard.ExitCode
	exitConfig      = 78 // EX_CONFIG of sysexits.h
	exitInterrupted = 130
)

// exitCodes is the one table of exit codes; `rdsd help exit-codes` prints it.
var exitCodes = []exitCode{
	{exitOK, "ok", "done"},
	{exitFailed, "failed", "the operation was tried and failed; the message says why"},
	{exitUsage, "usage", "wrong arguments; nothing was tried (a Go program that dies of a panic ends with the same number)"},
	{exitUnreachable, "unreachable", "the daemon could not be reached, or it went away"},
	{exitTimeout, "timeout", "nothing, or not enough, happened in the time allowed"},
	{exitBusy, "busy", "refused for now: destination congested, send buffer full, port or volume in use, rate limit"},
	{exitDenied, "denied", "this user, or this node, may not do that"},
	{exitIncomplete, "incomplete", "it ran, but not every datagram was delivered unharmed, or a copy differs"},
	{exitMissing, "missing", "there is no such peer, socket, volume, session or file"},
	{exitExists, "exists", "it is there already"},
	{exitInternal, "internal", "the daemon ended itself because of a bug that may have spoilt what it knows; its log has the stack"},
	{exitConfig, "config", "the daemon's configuration is wrong: to start it again would not help"},
	{exitInterrupted, "interrupted", "ended by SIGINT, SIGTERM or SIGHUP before it was done"},
}

func exitCodesText() string {
	var b strings.Builder
	b.WriteString("Exit codes of rdsd:\n\n")
	for _, e := range exitCodes {
		fmt.Fprintf(&b, "  %3d  %-12s %s\n", e.code, e.name, e.meaning)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// codeError carries an exit code chosen where the error arose.
type codeError struct {
	code int
	err  error
}

func (e *codeError) Error() string { return e.err.Error() }
func (e *codeError) Unwrap() error { return e.err }

// withCode gives err the exit code; nil stays nil.
func withCode(code int, err error) error {
	if err == nil {
		return nil
	}
	return &codeError{code, err}
}

// usagef is an error in what the user typed: exit code 2.
func usagef(format string, args ...any) error {
	return &codeError{exitUsage, fmt.Errorf(format, args...)}
}

// errnoExit maps the errno of a daemon's or SDK's error to an exit code.
// Numbers that are not here mean exitFailed.
var errnoExit = map[syscall.Errno]int{
	syscall.ETIMEDOUT:     exitTimeout,
	syscall.EAGAIN:        exitBusy,
	syscall.ENOBUFS:       exitBusy,
	syscall.EADDRINUSE:    exitBusy,
	syscall.EUSERS:        exitBusy,
	syscall.EMFILE:        exitBusy,
	syscall.ENOMEM:        exitBusy,
	syscall.EBUSY:         exitBusy,
	syscall.EACCES:        exitDenied,
	syscall.EPERM:         exitDenied,
	syscall.EROFS:         exitDenied,
	syscall.ENOENT:        exitMissing,
	syscall.EEXIST:        exitExists,
	syscall.ESHUTDOWN:     exitUnreachable,
	syscall.ECANCELED:     exitInterrupted,
	syscall.EINVAL:        exitUsage,
	syscall.EMSGSIZE:      exitUsage,
	syscall.EADDRNOTAVAIL: exitUsage,
	syscall.EOPNOTSUPP:    exitUsage,
	syscall.EDESTADDRREQ:  exitUsage,
}

// exitOf returns the exit code of a command that returned err.
func exitOf(err error) int {
	if err == nil {
		return exitOK
	}
	if e, ok := errors.AsType[*codeError](err); ok {
		return e.code
	}
	if errors.Is(err, context.Canceled) {
		return exitInterrupted
	}
	if hasErrno(err) {
		if code, ok := errnoExit[rdserr.Errno(err)]; ok {
			return code
		}
		return exitFailed
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return exitTimeout
	}
	return exitFailed
}

func hasErrno(err error) bool {
	if _, ok := errors.AsType[*rdserr.Error](err); ok {
		return true
	}
	_, ok := errors.AsType[syscall.Errno](err)
	return ok
}
