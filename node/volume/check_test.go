package volume

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rnbd"
)

// TestWhyAMappingIsNotOpen: what is said of a mapping that is not open is true of its cause, and the mend does not
// lead over data that others have changed.
func TestWhyAMappingIsNotOpen(t *testing.T) {
	closed := MappingInfo{MapSpec: MapSpec{ID: "v1", Node: "store", Name: "disk", Session: "s"}, State: StateClosed, PathsUp: 1, PathCount: 2}
	init, left := closed, closed
	init.State = StateInit
	left.State, left.Left, left.PathsUp = StateInit, true, 0
	away := init
	away.PathsUp = 0
	for name, c := range map[string]struct {
		m         MappingInfo
		err       error
		text, fix string
	}{
		"no path":              {func() MappingInfo { m := closed; m.PathsUp = 0; return m }(), errNoPath, "no path to store", "paths of session s"},
		"ENOENT":               {closed, rdserr.ErrNotFound, "the server does not have the volume", "export it on store, then remap v1"},
		"ENOENT, after start":  {init, rdserr.ErrNotFound, "the server does not have the volume", "export it on store; it is tried again"},
		"ESTALE":               {closed, rnbd.ErrStale, "not what was mapped", "look at the data; then remap v1, or unmap"},
		"ENOTCONN":             {closed, rnbd.ErrNotOpen, "has taken the volume from this session", "look at the data, then remap v1"},
		"EPERM":                {closed, rnbd.ErrWriter, "another session writes", "who that is"},
		"EACCES":               {closed, rdserr.ErrPerm, "does not let this node", "--allow"},
		"EACCES, after start":  {init, rdserr.ErrPerm, "does not let this node", "it is tried again"},
		"EIO":                  {closed, rdserr.ErrIO, "has not opened", "rdsd volume check disk"},
		"ETIMEDOUT":            {init, rdserr.ErrTimeout, "has not opened", "can be reached"},
		"ETIMEDOUT, state_dir": {init, hereError{rdserr.ErrTimeout}, "cannot be written here", "volumes.state_dir on this node"},
		"EPERM of a path":      {away, rdserr.ErrPerm, "no path to store", "paths of session s; it is tried again"},
		"EACCES of a path":     {away, syscall.EACCES, "no path to store", "paths of session s; it is tried again"},
		"EPERM of a device":    {init, deviceError{syscall.EPERM}, "cannot make a device", "on this node; it is tried again"},
		"EMFILE, left":         {left, rdserr.ErrTooMany, "not taken up at the start", "raise volumes.max_mappings"},
		"EINVAL, left":         {left, rdserr.ErrInvalid, "not taken up at the start", "on this node"},
	} {
		var k checks
		c.m.fails(c.err)
		k.mapping(&c.m)
		if len(k.list) != 1 || k.list[0].Severity != SeverityError || !strings.Contains(k.list[0].Text, c.text) || !strings.Contains(k.list[0].Fix, c.fix) {
			t.Errorf("%s: %+v; want %q and %q in it", name, k.list, c.text, c.fix)
		}
		if errno := rdserr.Errno(c.err); errno != syscall.ENOENT && strings.HasPrefix(k.list[0].Text, "the server does not have the volume") {
			t.Errorf("%s: %s", name, k.list[0].Text)
		}
	}
}

// TestWithoutPathThatIsWhy: a mapping that has lost its paths says so, and not how a request to it failed before; and requests to it
// wait, not those of another mapping of its session.
func TestWithoutPathThatIsWhy(t *testing.T) {
	server, client, s, m := withFaults(t, file(t, "disk", 1<<20), MapSpec{})
	mustExport(t, server.h, file(t, "other", 1<<20))
	other := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "other", Paths: server.twoPaths()})
	s.add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Count: 1, Err: blk.ErrNoSpace})
	c := open(t, m)
	if _, err := c.WriteAt(make([]byte, 4096), 0); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	server.stop()
	eventually(t, "no path", func() bool { i, _ := client.h.Mapping(m.ID); return i.State == StateClosed && i.PathsUp == 0 })
	read := make(chan error, 1)
	go func() { _, err := c.ReadAt(make([]byte, 4096), 0); read <- err }()
	eventually(t, "a request that waits", func() bool { i, _ := client.h.Mapping(m.ID); return i.Pending() == 1 })
	if i, _ := client.h.Mapping(m.ID); !strings.HasPrefix(i.LastError, "there is no path") {
		t.Errorf("it says %q", i.LastError)
	}
	if i, _ := client.h.Mapping(other.ID); i.Pending() != 0 || i.State != StateClosed {
		t.Errorf("%d requests to the other, which is %s", i.Pending(), i.State)
	}
	if err := client.h.Unmap(testCtx(t), m.ID, true); err != nil {
		t.Error(err)
	}
	<-read
}
