package volumetest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/transport"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// raiderHost is where the raider comes from.
const raiderHost = 66

const (
	canary      = "what nobody outside may read"
	theirs      = 1 << 20 // bytes of the raider's own volume
	raiderBytes = 0xee    // what the raider writes where it may not
)

// hostile is a world with a victim and a raider: the victim's app writes and
// verifies all the while.
type hostile struct {
	t    *testing.T
	w    *world
	a    *app
	keys *keyTap
	loot loot
	n    int // attempts
}

// TestHostileClient: a client that speaks the framing and breaks every rule of it
// reads and writes nothing outside of its own volume: with keys that it guesses,
// has used before, or knows of another session; beyond its bounds; by names
// that lead elsewhere. Another client does not notice.
func TestHostileClient(t *testing.T) {
	t.Parallel()
	h := newHostile(t)
	h.a.start()
	h.a.progress(100, 5*time.Second)
	for _, part := range []struct {
		name string
		run  func(*hostile)
	}{
		{"names", (*hostile).names},
		{"sessions", (*hostile).sessions},
		{"keys", (*hostile).wrongKeys},
		{"bounds", (*hostile).bounds},
		{"order", (*hostile).order},
		{"answers", (*hostile).answers},
		{"noise", (*hostile).noise},
	} {
		if !t.Run(part.name, func(t *testing.T) { h.t = t; part.run(h) }) {
			break
		}
	}
	h.t = t
	h.a.progress(100, 5*time.Second)
	worst := h.a.stall()
	if worst > worstStall {
		t.Errorf("an operation of the victim took %v", ms(worst))
	}
	h.a.stop()
	h.a.verify()
	h.a.d.inFile(t, h.w.file("victim"))
	if h.a.dials.Load() > 2 {
		t.Error("the victim lost its socket")
	}
	if p, err := h.w.client.vols().Paths(h.w.ctx(), ""); err != nil || len(p) != 1 || p[0].Reconnects > 0 {
		t.Errorf("the victim's path was lost: %+v, %v", p, err)
	}
	h.unchanged("secret")
	h.unchanged("readonly")
	for _, secret := range []string{canary, "10tvdsdr"} { // and the victim's blocks
		if h.loot.holds(secret) {
			t.Errorf("the raider was sent %q", secret)
		}
	}
	t.Logf("REPORT %d attempts of a hostile client came to nothing; %d operations of another went on, the longest took %v", h.n, h.a.ops.Load(), ms(worst))
}

func newHostile(t *testing.T) *hostile {
	w := newWorld(t, overTCP)
	h := &hostile{t: t, w: w, keys: &keyTap{conns: map[net.Conn][]byte{}}}
	for _, name := range []string{"secret", "readonly"} {
		h.put(w.file(name), strings.Repeat(canary, 300)[:8192])
	}
	h.put(w.file("theirs"), string(make([]byte, theirs)))
	for _, dir := range []string{"root/raider/dir", "root/other"} {
		if err := os.MkdirAll(filepath.Join(w.dir, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	mine := filepath.Join(w.dir, "root/raider")
	h.put(filepath.Join(mine, "mine"), string(make([]byte, 8192)))
	h.put(filepath.Join(w.dir, "root/other/disk"), strings.Repeat(canary, 300)[:8192])
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Symlink(w.file("secret"), filepath.Join(mine, "link")))
	must(os.Symlink("../../secret.img", filepath.Join(mine, "relative")))
	must(os.Symlink("../..", filepath.Join(mine, "up")))
	must(os.Symlink("mine", filepath.Join(mine, "harmless")))
	must(unix.Mkfifo(filepath.Join(mine, "pipe"), 0o600))
	if err := unix.Mknod(filepath.Join(mine, "zero"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))); err != nil && !errors.Is(err, unix.EPERM) {
		t.Fatal(err)
	}
	w.serve(false, fmt.Sprintf(`
[[volumes.exports]]
name = "victim"
path = %q
size = "%d"
create = true
logical_block_bytes = 4096
allow = ["%s/32"]
[[volumes.exports]]
name = "theirs"
path = %q
[[volumes.exports]]
name = "readonly"
path = %q
read_only = true
allow = ["%s/32"]
[[volumes.exports]]
name = "named"
path = %q
sessions = ["client-*"]
[[volumes.roots]]
path = %q
`, w.file("victim"), appBytes, w.at(clientHost), w.file("theirs"), w.file("readonly"), w.at(raiderHost), w.file("secret"), filepath.Join(w.dir, "root/{session}")))
	w.server.hostile = true
	w.map_("")
	w.addPaths(1)
	w.paths[0].(*proxy).tap = h.keys.take
	h.a = newApp(t, w.mount(rdsd.MapSpec{Name: "victim"}).URI)
	h.a.rate = time.Millisecond
	return h
}

func (h *hostile) put(path, content string) {
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// unchanged looks at a file of canaries.
func (h *hostile) unchanged(name string) {
	h.t.Helper()
	if b, err := os.ReadFile(h.w.file(name)); err != nil || string(b) != strings.Repeat(canary, 300)[:8192] {
		h.t.Errorf("%s was changed (%v)", name, err)
	}
}

func (h *hostile) raid(name string) (*raider, error) {
	return raid(h.t, &h.loot, h.w.at(raiderHost), fmt.Sprintf("%s:%d", h.w.at(serverHost), h.w.volumes), name)
}

// enter raids under a name that is right.
func (h *hostile) enter() *raider {
	h.t.Helper()
	r, err := h.raid("raider")
	if err != nil {
		h.t.Fatal(err)
	}
	return r
}

// leave ends a path, so that another of the session's name can come.
func (r *raider) leave() { r.close() }

// names opens volumes by names that lead out of the root, or to something that is no
// volume, or that are not the raider's.
func (h *hostile) names() {
	r := h.enter()
	defer r.leave()
	if _, _, errno, err := r.openVolume("mine", rnbdwire.ReadWrite); errno != 0 || err != nil {
		h.t.Fatalf("its own file: errno %d, %v", errno, err)
	}
	for _, name := range []string{
		"../secret.img", "../../secret.img", "dir/../../../secret.img", "..", ".", "", "/", "//", "../", "./mine", "dir//../mine",
		h.w.file("secret"), "/etc/passwd", "/" + h.w.file("secret"), "/../secret.img", "../other/disk", "../../root/other/disk", "link", "relative", "up/secret.img", "up/root/other/disk", "harmless",
		"pipe", "dir", "zero", "nothing", "victim", "named", "mine\n", strings.Repeat("a", 255), strings.Repeat("../", 84) + "etc/passwd", "\xff\xfe",
		"%SESSNAME%/mine", "{session}/mine",
	} {
		for _, access := range []rnbdwire.Access{rnbdwire.ReadOnly, rnbdwire.ReadWrite, rnbdwire.Migration} {
			_, _, errno, err := r.openVolume(name, access)
			if err != nil {
				h.t.Fatalf("open %.40q: %v", name, err)
			}
			if errno == 0 {
				h.t.Errorf("%.40q was opened (%v)", name, access)
			}
			h.n++
		}
	}
	if _, _, errno, err := r.openVolume("readonly", rnbdwire.ReadWrite); errno == 0 || err != nil {
		h.t.Errorf("what is read-only was opened for writing: errno %d, %v", errno, err)
	}
}

// sessions uses names of sessions that would lead elsewhere as part of a path, or that are
// another's.
func (h *hostile) sessions() {
	for _, name := range []string{"..", ".", "../other", "a/b", "", strings.Repeat("a", 270), "\x00", "."} {
		r, err := h.raid(name)
		if err == nil {
			h.t.Errorf("session %.40q was let in", name)
			r.leave()
		}
		h.n++
	}
	m, err := h.w.client.vols().Sessions(h.w.ctx())
	if err != nil || len(m) != 1 {
		h.t.Fatalf("%v, %v", m, err)
	}
	if r, err := h.raid(m[0].Name); err == nil { // the victim's
		h.t.Errorf("the raider has taken the place of session %q", m[0].Name)
		r.leave()
	}
	h.n++
}

// keyTap learns the keys of others' sessions from the wire.
type keyTap struct {
	mu    sync.Mutex
	conns map[net.Conn][]byte // guarded by mu; the beginning of each connection
}

func (k *keyTap) take(c net.Conn, b []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.conns[c]; len(s) < 16<<20 {
		k.conns[c] = append(s, b...)
	}
}

// find returns the regions that servers have told clients of, and the new keys
// of answers, which are of the same regions.
func (k *keyTap) find() (descs []rtrswire.Desc, renewed []uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, b := range k.conns {
		for seq := uint32(0); len(b) >= transport.TagLen; seq++ {
			var f transport.Tag
			if f.Parse(b, seq) != nil || len(b) < transport.TagLen+int(f.Len) {
				break
			}
			data := b[transport.TagLen:][:f.Len]
			b = b[transport.TagLen+int(f.Len):]
			t, err := rtrswire.MessageType(data)
			switch {
			case err != nil:
			case f.Kind == transport.OpSend && t == rtrswire.InfoRspType:
				for at := rtrswire.InfoRspLen; at+rtrswire.DescLen <= len(data); at += rtrswire.DescLen {
					d := data[at:]
					le := leNumber
					descs = append(descs, rtrswire.Desc{Addr: le(d[:8]), Key: uint32(le(d[8:12])), Len: uint32(le(d[12:16]))})
				}
			case f.Kind == transport.OpSendImm:
				if r, err := rtrswire.ParseRKeyRsp(data); err == nil {
					renewed = append(renewed, r.Key)
				}
			}
		}
	}
	return descs, renewed
}

func leNumber(b []byte) (n uint64) {
	for i := len(b) - 1; i >= 0; i-- {
		n = n<<8 | uint64(b[i])
	}
	return n
}

// strike posts one write and wants the path to end for it.
func (h *hostile) strike(what string, frame func(r *raider) transport.Tag) {
	h.t.Helper()
	r := h.enter()
	f := frame(r)
	f.Kind = transport.OpWrite
	if f.Imm != 0 {
		f.Kind = transport.OpWriteImm
	}
	r.cons[1].send(f, bytes.Repeat([]byte{raiderBytes}, 4096))
	r.ends(what)
	r.leave()
	h.n++
}

// wrongKeys writes with keys that are not the raider's.
func (h *hostile) wrongKeys() {
	descs, renewed := h.keys.find()
	if len(descs) < 16 || len(renewed) < 16 {
		h.t.Fatalf("%d keys and %d renewed ones were seen", len(descs), len(renewed))
	}
	for i := range 12 { // the victim's chunks, those not used yet and the others
		d := descs[len(descs)-1-i]
		h.strike("a key of another session", func(*raider) transport.Tag { return transport.Tag{Key: d.Key, Addr: d.Addr} })
		d = descs[i]
		h.strike("an old key of another session", func(*raider) transport.Tag { return transport.Tag{Key: d.Key, Addr: d.Addr, Imm: 1} })
		h.strike("a renewed key of another session", func(*raider) transport.Tag {
			return transport.Tag{Key: renewed[len(renewed)-1-i], Addr: d.Addr}
		})
		h.strike("the victim's address, with the raider's key", func(r *raider) transport.Tag {
			return transport.Tag{Key: r.descs[i].Key, Addr: d.Addr}
		})
	}
	for i := range 40 {
		h.strike("a guessed key", func(r *raider) transport.Tag {
			key := r.descs[0].Key
			switch {
			case i < 8:
				key ^= 1 << (4 * i)
			case i < 16:
				key += uint32(i - 7)
			case i < 24:
				key -= uint32(i - 15)
			default:
				key = rand.Uint32()
			}
			for _, d := range r.descs {
				if d.Key == key {
					key = 0
				}
			}
			return transport.Tag{Key: key, Addr: r.descs[0].Addr}
		})
	}
	for _, imm := range []uint32{0, uint32(rtrswire.ImmHeartbeat)} {
		h.strike("a key that was used", func(r *raider) transport.Tag {
			old := r.descs[0]
			if _, _, errno, err := r.openVolume("theirs", rnbdwire.ReadOnly); errno != 0 || err != nil {
				h.t.Fatalf("its own volume: errno %d, %v", errno, err)
			}
			if r.descs[0].Key == old.Key {
				h.t.Error("the key was not renewed")
			}
			return transport.Tag{Key: old.Key, Addr: old.Addr, Imm: imm}
		})
	}
}
