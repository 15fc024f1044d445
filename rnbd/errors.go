package rnbd

import (
	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
)

// The errors of opening and mapping. The numbers are those that the kernel's RNBD answers
// for the same cause; they are Linux's on the architectures RTRS goes between, because 9
// bits of them are on the wire.
var (
	ErrWriter  = &rdserr.Error{Errno: 1, Name: "other-writer", Text: "another session has the volume open for writing"}                        // EPERM
	ErrBusy    = &rdserr.Error{Errno: 16, Name: "volume-busy", Text: "the volume is in use"}                                                   // EBUSY
	ErrExists  = &rdserr.Error{Errno: 17, Name: "volume-exists", Text: "there is a volume of this name already"}                               // EEXIST
	ErrGone    = &rdserr.Error{Errno: 19, Name: "volume-gone", Text: "the volume is not mapped"}                                               // ENODEV
	ErrNotOpen = &rdserr.Error{Errno: 107, Name: "volume-not-open", Text: "the server does not have the volume open in this session"}          // ENOTCONN
	ErrAlready = &rdserr.Error{Errno: 114, Name: "volume-already-open", Text: "the volume is open"}                                            // EALREADY
	ErrStale   = &rdserr.Error{Errno: 116, Name: "volume-stale", Text: "the volume is not what was mapped: others changed it, or it was lost"} // ESTALE
)

// What a server answers with the number of an error that a user of this node, or a limit of it, may be the reason of
// here: said of that one, it sends the reader to the wrong machine.
var (
	errDenied = &rdserr.Error{Errno: 13, Name: "volume-denied", Text: "the server does not let this node have the volume"} // EACCES
	errFull   = &rdserr.Error{Errno: 24, Name: "server-full", Text: "a configured number is reached at the server"}        // EMFILE
	errSpent  = &rdserr.Error{Errno: 12, Name: "server-spent", Text: "the server has no memory for it"}                    // ENOMEM
)

// answers are the sentinels for a server's answers, by errno.
var answers = []*rdserr.Error{
	ErrWriter, ErrBusy, ErrGone, ErrNotOpen, ErrStale, errDenied, errFull, errSpent,
	blk.ErrMedium, blk.ErrNoSpace, blk.ErrReadOnly, blk.ErrNotSupported, blk.ErrClosed, blk.ErrRequest,
	rdserr.ErrNotFound,
}

// answer returns the error for a server's answer: the sentinel of its errno, if there is
// one.
func answer(err error) error {
	n := rdserr.Errno(err)
	for _, e := range answers {
		if e.Errno == n {
			return e
		}
	}
	return err
}
