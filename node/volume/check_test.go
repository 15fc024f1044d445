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
	away, pathless := init, closed
	away.PathsUp = 0
	pathless.PathsUp, pathless.Waiting = 0, 9 // of its session
	pathless.Ops = []OpCounters{{Submitted: 5, Completed: 2}}
	port, brackets := pathless, pathless
	port.Node, brackets.Node = "[fd00::7]:16388", "[fd00::7]"
	for name, c := range map[string]struct {
		m         MappingInfo
		err       error
		text, fix string
	}{
		"no path":              {pathless, errNoPath, "no path to store, so store:disk cannot be used; waiting requests: 3: there is no path", "path of session s fails of; rdsd ping store"},
		"no path, a port":      {port, errNoPath, "no path to [fd00::7]:16388, so", "rdsd ping fd00::7"},
		"no path, brackets":    {brackets, errNoPath, "no path", "rdsd ping fd00::7"},
		"ENOENT":               {closed, rdserr.ErrNotFound, "store does not have the volume disk", "export it; then here: rdsd volume remap v1"},
		"ENOENT, after start":  {init, rdserr.ErrNotFound, "store does not have the volume disk", "export it; it is tried again"},
		"ESTALE":               {closed, rnbd.ErrStale, "store:disk is not what was mapped", "look at the data; then rdsd volume remap v1, or unmap"},
		"ENOTCONN":             {closed, rnbd.ErrNotOpen, "store has taken the volume disk from this node", "look at the data; then here: rdsd volume remap v1"},
		"EPERM":                {closed, rnbd.ErrWriter, "another session writes the volume disk of store", "on store: rdsd volume show disk says which"},
		"EACCES":               {closed, rdserr.ErrPerm, "does not let this node", "--allow"},
		"EACCES, after start":  {init, rdserr.ErrPerm, "does not let this node", "it is tried again"},
		"EIO":                  {closed, rdserr.ErrIO, "has not opened", "rdsd volume check disk"},
		"ETIMEDOUT":            {init, rdserr.ErrTimeout, "has not opened", "rdsd volume check disk"},
		"ETIMEDOUT, state_dir": {init, hereError{rdserr.ErrTimeout}, "cannot be written on this node", "the disk of volumes.state_dir, here"},
		"EPERM of a path":      {away, rdserr.ErrPerm, "no path to store", "path of session s"},
		"EACCES of a path":     {away, syscall.EACCES, "no path to store", "path of session s"},
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
		if errno := rdserr.Errno(c.err); errno != syscall.ENOENT && strings.HasPrefix(k.list[0].Text, "store does not have the volume") {
			t.Errorf("%s: %s", name, k.list[0].Text)
		}
	}
}

// TestWithoutPathThatIsWhy: a mapping that has lost its paths says so, and not how a request to it failed before, nor that this failed for
// want of a path; and requests to it wait, not those of another mapping of its session.
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
	if i, _ := client.h.Mapping(m.ID); !strings.HasPrefix(i.LastError, "there is no path") || !strings.Contains(i.FailedWhy, "is full") {
		t.Errorf("it says %q, and of the write that failed %q", i.LastError, i.FailedWhy)
	}
	if i, _ := client.h.Mapping(other.ID); i.Pending() != 0 || i.State != StateClosed {
		t.Errorf("%d requests to the other, which is %s", i.Pending(), i.State)
	}
	if err := client.h.Unmap(testCtx(t), m.ID, true); err != nil {
		t.Error(err)
	}
	<-read
}

// TestWhyAnUnmappedOneIsNotOpen: nothing is said of the other node, which was not asked.
func TestWhyAnUnmappedOneIsNotOpen(t *testing.T) {
	m := MappingInfo{MapSpec: MapSpec{ID: "v1", Node: "store", Name: "disk"}, State: StateUnmapped, PathsUp: 1, PathCount: 1}
	if text, _ := m.NotOpen(); text != "it is being unmapped" {
		t.Error(text)
	}
}

// TestPathsMend: what mends a path is said of what ended it, and names what has to be open.
func TestPathsMend(t *testing.T) {
	for _, c := range []struct {
		p    PathInfo
		want string
	}{
		{PathInfo{Session: "s", PathSpec: PathSpec{Src: "10.0.0.1:4", Dst: "10.0.0.2:16388"}, State: "reconnecting"}, "see to the network between these addresses, and that TCP port 16388 is open; rdsd volume paths"},
		{PathInfo{Session: "s", PathSpec: PathSpec{Src: "a", Dst: "b"}, State: "reconnecting"}, "see to the network between these addresses, and that TCP port 16388 is open; rdsd volume paths"},
		{PathInfo{Session: "s", PathSpec: PathSpec{Src: "a", Dst: "b"}, State: "disconnected"}, "an administrator has disconnected it: rdsd volume paths reconnect s a,b"},
		{PathInfo{Session: "s", PathSpec: PathSpec{Src: "10.0.0.1:4", Dst: "10.0.0.2:5"}, State: "disconnected", GivenUp: true, Attempts: 10},
			"it was given up (max_reconnect_attempts, 10 in a row): see to the network between these addresses, and that TCP port 5 is open; then rdsd volume paths reconnect s 10.0.0.1:4,10.0.0.2:5"},
		{PathInfo{Session: "s", PathSpec: PathSpec{Src: "a", Dst: "b", Transport: TransportIB}, State: "disconnected", GivenUp: true, Attempts: 1},
			"it was given up (max_reconnect_attempts, 1 in a row): see to the network between these addresses, and that UDP port 4791 is open; then rdsd volume paths reconnect s a,b"},
		{PathInfo{State: "disconnected", Replaced: true, GivenUp: true},
			"another session of this name from this node took its place (a second daemon?): unmap its volumes, and map them again with a --session of their own"},
	} {
		if got := c.p.Mend(); got != c.want {
			t.Errorf("%+v\n%s\nwant\n%s", c.p, got, c.want)
		}
	}
}
