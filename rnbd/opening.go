package rnbd

import (
	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
)

// Opening is a file or block device that a client has asked for. The shell
// calls Do without the Server's lock, and hands what it returns to
// Server.Opened.
type Opening struct {
	// Name is what the client asked for, Session the name of its session.
	Name, Session string

	tries  []try
	denied error // what was wrong with other places
	found  *try  // where Do found it
	h      *handle
}

// try is one place where the volume may be.
type try struct {
	exp   *Export
	root  *Root
	rules *Rules
	path  string // of the administrator, or below root.dir
	file  blk.FileOptions
}

// Do opens the volume: the first of the places where there is one. It may wait
// for the file system. The shell may put layers over the device.
func (o *Opening) Do() (blk.Device, error) {
	for i := range o.tries {
		t := &o.tries[i]
		d, err := t.open()
		switch {
		case err == nil:
			o.found = t
			return d, nil
		case rdserr.Errno(err) != rdserr.ErrNotFound.Errno || t.exp != nil:
			return nil, err
		}
	}
	if o.denied != nil {
		return nil, o.denied
	}
	return nil, rdserr.With(rdserr.ErrNotFound, "no volume %q is exported", o.Name)
}

func (t *try) open() (blk.Device, error) {
	opts := t.file
	opts.ReadOnly = opts.ReadOnly || t.rules.ReadOnly
	f, err := t.openFile(opts)
	if n := rdserr.Errno(err); !opts.ReadOnly && (n == rdserr.ErrPerm.Errno || n == blk.ErrReadOnly.Errno) {
		opts.ReadOnly = true // it may be read all the same
		if ro, err2 := t.openFile(opts); err2 == nil {
			return ro, nil
		}
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (t *try) openFile(o blk.FileOptions) (*blk.File, error) {
	if t.root != nil {
		return t.root.dir.Open(t.path, o)
	}
	return blk.OpenFile(t.path, o)
}
