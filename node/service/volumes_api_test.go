package service

import (
	"context"
	"errors"
	"testing"

	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/rdserr"
)

// A node without volumes (as fakes in tests are) says so.
func TestVolumesWithoutHost(t *testing.T) {
	n := newWorld(t, clienttest.Config(t), world{})
	s := &volumeServer{front: n.services}
	if _, err := s.List(context.Background(), nil); !errors.Is(err, rdserr.ErrNotSupported) {
		t.Error(err)
	}
}
