package volume

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/transport/tcp"
)

// TestStoreThatGoesAndComes: an export is failed from the first session that its store failed
// until it can be opened again, whoever finds that.
func TestStoreThatGoesAndComes(t *testing.T) {
	r, err := reactor.New(reactor.Options{CPU: -1, SpinFor: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	looks := make(chan struct{}) // lets the Host look once
	m := thisMachine(nil)
	wait := m.Wait
	m.Wait = func(d time.Duration, bells ...<-chan struct{}) int {
		if d != lookEvery {
			return wait(d, bells...)
		}
		if wait(Forever, append(bells, looks)...) == len(bells) {
			return -1
		}
		return 0
	}
	late, disk := file(t, "late", 8<<20), file(t, "disk", 8<<20)
	late.Path += ".late"
	server.cfg.Exports = []ExportSpec{late}
	h, err := newHostOn(server.cfg, Deps{Provider: tcp.New(r), Reactors: []*reactor.Reactor{r}}, kernelDriver, m)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := h.Close(testCtx(t)); err != nil {
			t.Error(err)
		}
	}()
	client.start()
	defer client.stop()
	mustExport(t, h, disk)
	look := func() {
		t.Helper()
		select {
		case looks <- struct{}{}:
		case <-time.After(10 * time.Second):
			t.Fatal("the Host does not look")
		}
	}
	is := func(name, state string) ExportInfo {
		t.Helper()
		i, err := h.exportInfo(name)
		if err != nil || i.State != state || (i.Error != "") != (state == "failed") {
			t.Errorf("%s: %s, %q, %v; want %s", name, i.State, i.Error, err, state)
		}
		return i
	}
	moved := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	maps := func(name string) error {
		m, err := client.h.Map(testCtx(t), MapSpec{Node: server.node(), Name: name})
		if err == nil {
			is(name, "open")
			if err := client.h.Unmap(testCtx(t), m.ID, true); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it is closed", func() bool { i, _ := h.exportInfo(name); return len(i.Users) == 0 })
		}
		return err
	}

	// The disk was late, and a session finds it, or the Host.
	is("late", "failed")
	look()
	look()
	is("late", "failed")
	moved(strings.TrimSuffix(late.Path, ".late"), late.Path)
	eventually(t, "it was looked at", func() bool {
		select {
		case looks <- struct{}{}:
		default:
		}
		i, _ := h.exportInfo("late")
		return i.State == "closed"
	})
	if i := is("late", "closed"); i.Info.Size != 8<<20 || i.Kind != KindFile {
		t.Errorf("looked at: %+v", i)
	}

	// A store goes while nobody has it open.
	is("disk", "closed")
	for range 2 {
		began := time.Now()
		moved(disk.Path, disk.Path+".away")
		if err := maps("disk"); err == nil {
			t.Fatal("a store that is not there was opened")
		}
		if i := is("disk", "failed"); i.Since.Before(began) {
			t.Errorf("failed since %v, before it was", i.Since)
		}
		moved(disk.Path+".away", disk.Path)
		if err := maps("disk"); err != nil {
			t.Fatal(err)
		}
		is("disk", "closed")
	}
	look() // whoever looked for it ends
	select {
	case looks <- struct{}{}:
		t.Error("the Host looks at a store that nobody wants")
	case <-time.After(50 * time.Millisecond):
	}

	// One that goes while a session has it open is failed for the next one.
	m1, err := client.h.Map(testCtx(t), MapSpec{Node: server.node(), Name: "disk"})
	if err != nil {
		t.Fatal(err)
	}
	moved(disk.Path, disk.Path+".away")
	if _, err := client.h.Map(testCtx(t), MapSpec{Node: server.node(), Name: "disk", Session: "second", Access: AccessRO}); err == nil {
		t.Fatal("a store that is not there was opened")
	}
	is("disk", "open")
	if err := client.h.Unmap(testCtx(t), m1.ID, true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is failed", func() bool { i, _ := h.exportInfo("disk"); return i.State == "failed" })
	if err := h.Unexport(testCtx(t), "disk", true); err != nil {
		t.Fatal(err)
	}
	look()
}

// TestCheckLooksAtAStore: what Check finds of a store is what status says from then on. The remedy of export-failed is to mend the store and
// to check the export, and after that nothing is to say that it is failed.
func TestCheckLooksAtAStore(t *testing.T) {
	server := newServerNode(t, freePort(t))
	server.start()
	defer server.stop()
	h, disk := server.h, file(t, "disk", 8<<20)
	mustExport(t, h, disk)
	check := func(severity, state, text string) {
		t.Helper()
		list, err := h.Check(testCtx(t), "disk")
		if err != nil || len(list) != 1 || list[0].Severity != severity || !strings.Contains(list[0].Text, text) {
			t.Errorf("check: %+v, %v; want %s", list, err, severity)
		}
		if i, err := h.exportInfo("disk"); err != nil || i.State != state || (i.Error != "") != (state == "failed") {
			t.Errorf("after the check: %s, %q, %v; want %s", i.State, i.Error, err, state)
		}
	}
	check(SeverityOK, "closed", "8388608 bytes")
	if err := os.Rename(disk.Path, disk.Path+".away"); err != nil {
		t.Fatal(err)
	}
	check(SeverityError, "failed", "no such file")
	if list, _ := h.Check(testCtx(t), "disk"); strings.Contains(list[0].Text, "--create") {
		t.Errorf("an empty file is to take the place of what was lost: %s", list[0].Text)
	}
	if _, err := os.Stat(disk.Path); err == nil {
		t.Error("the check made a file")
	}
	if err := os.WriteFile(disk.Path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	check(SeverityError, "failed", "is empty")
	if err := os.Rename(disk.Path+".away", disk.Path); err != nil {
		t.Fatal(err)
	}
	check(SeverityOK, "closed", "8388608 bytes")
}

// TestCheckFindsAReplacedStore: a file that was replaced under those who have it open, as by rsync, is an error: what they write is in no
// file that will be there.
func TestCheckFindsAReplacedStore(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	defer server.stop()
	client.start()
	defer client.stop()
	disk := file(t, "disk", 8<<20)
	mustExport(t, server.h, disk)
	mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk"})
	check := func(what string, errors ...string) {
		t.Helper()
		list, err := server.h.Check(testCtx(t), "disk")
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range list {
			if f.Severity == SeverityError {
				got = append(got, f.Text)
			}
		}
		if len(got) != len(errors) {
			t.Errorf("%s: %q", what, got)
			return
		}
		for i, e := range errors {
			if !strings.Contains(got[i], e) {
				t.Errorf("%s: %q, want %q", what, got[i], e)
			}
		}
	}
	check("in use")
	if err := os.Rename(disk.Path, disk.Path+".away"); err != nil {
		t.Fatal(err)
	}
	check("moved", "no such file", "another file open")
	if err := os.WriteFile(disk.Path, make([]byte, 8<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	check("replaced", "another file open")
	if err := os.Rename(disk.Path+".away", disk.Path); err != nil {
		t.Fatal(err)
	}
	check("put back")
}
