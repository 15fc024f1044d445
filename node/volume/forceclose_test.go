package volume

import (
	"strings"
	"syscall"
	"testing"
)

// TestForceClose: an export is taken from one of two sessions. The other keeps it, the daemon shows
// who has it, and the mapping stays closed until it is opened again by hand.
func TestForceClose(t *testing.T) {
	server, client, _, m := withFaults(t, file(t, "disk", 8<<20), MapSpec{})
	ctx := testCtx(t)
	other, err := client.h.Map(ctx, MapSpec{Node: m.Node, Name: "disk", Session: "reader", Access: "ro"})
	if err != nil {
		t.Fatal(err)
	}
	users := func() (names []string) {
		for _, x := range server.h.Exports() {
			for _, u := range x.Users {
				names = append(names, u.Session)
			}
		}
		return names
	}
	if got := users(); len(got) != 2 {
		t.Fatalf("%q have it open", got)
	}
	is(t, "no such session", server.h.ForceClose(ctx, "disk", "nobody"), syscall.ENOENT, "no session")
	is(t, "no such volume", server.h.ForceClose(ctx, "tape", m.Session), syscall.ENOENT, "does not have")
	id := ""
	for _, s := range server.h.Sessions() {
		if s.Name == m.Session {
			id = s.ID
		}
	}
	if err := server.h.ForceClose(ctx, "disk", id); err != nil {
		t.Fatal(err)
	}
	if got := users(); len(got) != 1 || got[0] != "reader" {
		t.Errorf("%q have it open", got)
	}
	for _, s := range server.h.Sessions() {
		if want := s.Name == "reader"; (len(s.Volumes) == 1) != want {
			t.Errorf("session %s has %q", s.Name, s.Volumes)
		}
	}
	d, b := open(t, m), make([]byte, 4096)
	if _, err := d.ReadAt(b, 0); err == nil {
		t.Error("what was taken is read")
	}
	if _, err := open(t, other).ReadAt(b, 0); err != nil {
		t.Errorf("the other session: %v", err)
	}
	eventually(t, "closed", func() bool {
		i, _ := client.h.Mapping(m.ID)
		return i.State == StateClosed && i.Errno == syscall.ENOTCONN && strings.Contains(i.LastError, "taken")
	})
	is(t, "once more", server.h.ForceClose(ctx, "disk", m.Session), syscall.ENOENT, "does not have")
	if _, err := client.h.Remap(ctx, m.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := d.ReadAt(b, 0); err != nil {
		t.Errorf("opened again: %v", err)
	}
	if got := users(); len(got) != 2 {
		t.Errorf("%q have it open", got)
	}
}
