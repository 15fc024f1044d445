package service

import (
	"errors"
	"sync/atomic"

	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/volume"
	"github.com/rdsd/rdsd/rdserr"
)

// fullCount counts how often a limit said no.
type fullCount struct{ n atomic.Uint64 }

// volumesFull is how often the limits of volumes said no.
type volumesFull struct{ exports, mappings fullCount }

func (f *fullCount) note(err error) {
	if errors.Is(err, rdserr.ErrTooMany) {
		f.n.Add(1)
	}
}

// volumeBudgets are the limits of what an administrator adds.
func (f *Front) volumeBudgets() []base.Budget {
	h := f.deps.Volumes()
	if h == nil {
		return nil
	}
	v := &f.deps.Config.Volumes
	return []base.Budget{
		{Name: "exports", Used: uint64(len(h.Exports())), Limit: uint64(v.MaxExports), Refused: f.full.exports.n.Load()},
		{Name: "mappings", Used: uint64(len(h.Mappings())), Limit: uint64(v.MaxMappings), Refused: f.full.mappings.n.Load()},
	}
}

// volumeHost is the host of volumes, or why there is none.
func (f *Front) volumeHost() (*volume.Host, error) {
	if h := f.deps.Volumes(); h != nil {
		return h, nil
	}
	return nil, rdserr.With(rdserr.ErrNotSupported, "this daemon has no volumes")
}
