package rnbd

import (
	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
)

// Opening is a file or block device that a client has asked for. The shell calls Do without
// the Server's lock until there is no more place to look at, and hands its last results to
// Server.Opened.
type Opening struct {
	// Name is the name the client asked for, Session that of its session.
	Name, Session string

	tries  []try
	at     int   // of tries, where Do looks next
	denied error // the error of other places
	found  *try  // where Do found it
	h      *handle
	note   bool // another session than before writes: it waits for ServerEnv.Note
	before past // what was remembered until then
	held   bool // its name was not: Server.held
}

// try is one place where the volume may be.
type try struct {
	exp   *Export
	root  *Root
	rules *Rules
	path  string // of the administrator, or below root.dir
	file  blk.FileOptions
}

// where names the place, the same after a start of the machine.
func (t *try) where() string {
	switch {
	case t.root != nil:
		return t.root.Path + "/" + t.path
	case t.path != "":
		return t.path
	}
	return "export " + t.exp.Name
}

// Place returns where Do looks next, an *Export or a *Root: an opening at one place should
// not stand behind one at another, whose file system may stand still.
func (o *Opening) Place() any {
	if t := &o.tries[o.at]; t.exp != nil {
		return t.exp
	}
	return o.tries[o.at].root
}

// Do looks for the volume at Place and opens it if it is there. It may wait for the file
// system. The shell may put layers over the device. If more is true the volume is not
// there, neither d nor err is set, and Do is to be called again for the next place.
func (o *Opening) Do() (d blk.Device, more bool, err error) {
	t := &o.tries[o.at]
	if d, err = t.open(); err == nil {
		o.found = t
		return d, false, nil
	}
	switch missing := rdserr.Errno(err) == rdserr.ErrNotFound.Errno && t.exp == nil; {
	case missing && o.at+1 < len(o.tries):
		o.at++
		return nil, true, nil
	case missing && o.denied != nil:
		err = o.denied
	case missing:
		err = rdserr.With(rdserr.ErrNotFound, "no volume %q is exported", o.Name)
	}
	return nil, false, err
}

func (t *try) open() (blk.Device, error) {
	opts := t.file
	opts.ReadOnly = opts.ReadOnly || t.rules.ReadOnly
	d, err := t.openFile(opts)
	if n := rdserr.Errno(err); !opts.ReadOnly && (n == rdserr.ErrPerm.Errno || n == blk.ErrReadOnly.Errno) {
		opts.ReadOnly = true // it may be read all the same
		if ro, err2 := t.openFile(opts); err2 == nil {
			return ro, nil
		}
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

func (t *try) openFile(o blk.FileOptions) (blk.Device, error) {
	switch {
	case t.root != nil:
		return t.root.dir.Open(t.path, o)
	case t.exp.Open != nil:
		return t.exp.Open(t.path, o)
	}
	return blk.OpenFile(t.path, o)
}
