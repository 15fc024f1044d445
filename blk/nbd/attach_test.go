package nbd

import (
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
)

// fakeGenl answers as the kernel does, from written-down messages, and keeps
// what it was asked. The numbers are those of a little-endian machine.
type fakeGenl struct {
	t       *testing.T
	asked   []string
	answers []string // one for each call: datagrams, separated by |
	closed  int
}

func (f *fakeGenl) close() { f.closed++ }

func (f *fakeGenl) call(request []byte) (answers [][]byte, err error) {
	f.asked = append(f.asked, hex.EncodeToString(request))
	if len(f.answers) == 0 {
		f.t.Fatalf("one call too many: %x", request)
	}
	answer := f.answers[0]
	f.answers = f.answers[1:]
	for datagram := range strings.SplitSeq(answer, "|") {
		b := unhex(f.t, datagram)
		done, err := parseAnswers(b, native.Uint32(request[8:]), &answers)
		if done || err != nil {
			return answers, err
		}
	}
	f.t.Fatal("no acknowledgement")
	return nil, nil
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.NewReplacer(" ", "", "\n", "", "\t", "").Replace(s))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// withGenl runs f against written-down answers and compares what was asked.
func withGenl(t *testing.T, answers []string, want string, f func()) {
	t.Helper()
	if native.Uint16([]byte{1, 0}) != 1 {
		t.Skip("elsewhere: the messages are written down for little-endian machines")
	}
	fake := &fakeGenl{t: t, answers: append([]string{familyAnswer}, answers...)}
	old := dialGenl
	dialGenl = func() (netlink, error) { return fake, nil }
	defer func() { dialGenl = old }()
	f()
	if want == "" {
		return
	}
	if len(fake.asked) != 2 || fake.asked[0] != hex.EncodeToString(unhex(t, familyRequest)) || fake.asked[1] != hex.EncodeToString(unhex(t, want)) {
		t.Errorf("asked\n%s\nwant\n%x\n%x", strings.Join(fake.asked, "\n"), unhex(t, familyRequest), unhex(t, want))
	}
}

const (
	// familyRequest is an nlmsghdr (length, type, flags, sequence, port) with a genlmsghdr
	// (command, version).
	familyRequest = `1c000000 1000 0500 01000000 00000000  03 01 0000
		0800 0200 6e626400`
	// What Linux 6.1 answers.
	familyAnswer = `b4000000 1000 0000 01000000 00000000  01 02 0000
		0800 0200 6e626400  0600 0100 2a00 0000
		0800 0300 01000000  0800 0400 00000000  0800 0500 0a000000
		5400 0600
		1400 0100 0800 0100 01000000 0800 0200 0a000000
		1400 0200 0800 0100 02000000 0800 0200 0a000000
		1400 0300 0800 0100 03000000 0800 0200 0a000000
		1400 0400 0800 0100 05000000 0800 0200 0a000000
		2400 0700 2000 0100 0800 0200 03000000 1100 0100 6e62645f6d635f67726f757000 000000
		|24000000 0200 0000 01000000 00000000 00000000 1c000000 1000 0500 01000000 00000000`

	acknowledged = `24000000 0200 0000 02000000 00000000 00000000 1c000000 2a00 0500 02000000 00000000`
)

func refused(errno syscall.Errno) string {
	return `24000000 0200 0000 02000000 00000000 ` + hex.EncodeToString(native.AppendUint32(nil, uint32(-int32(errno)))) + ` 1c000000 2a00 0500 02000000 00000000`
}

var attached = Attach{
	Size: 1 << 30, BlockSize: 4096, Flags: 0x16d,
	Timeout: 1500 * time.Millisecond, DeadTimeout: 90 * time.Second,
	Sockets: []int{7, 9}, Backend: "vol", DisconnectOnClose: true,
}

func TestConnect(t *testing.T) {
	withGenl(t, []string{`1c000000 2a00 0000 02000000 00000000  01 01 0000  0800 0100 05000000 |` + acknowledged},
		`80000000 2a00 0500 02000000 00000000  01 01 0000
		0c00 0200 0000004000000000
		0c00 0300 0010000000000000
		0c00 0400 0200000000000000
		0c00 0800 5a00000000000000
		0c00 0600 0200000000000000
		0800 0a00 766f6c00
		1c00 0780  0c00 0180 0800 0100 07000000  0c00 0180 0800 0100 09000000
		0c00 0500 6d01000000000000`,
		func() {
			if n, err := Connect(AnyDevice, attached); n != 5 || err != nil {
				t.Errorf("%d, %v", n, err)
			}
		})
	a := attached
	a.Backend, a.Sockets, a.DestroyOnDisconnect = "", []int{3}, true
	withGenl(t, []string{`1c000000 2a00 0000 02000000 00000000  01 01 0000  0800 0100 02000000 |` + acknowledged},
		`74000000 2a00 0500 02000000 00000000  01 01 0000
		0800 0100 02000000
		0c00 0200 0000004000000000
		0c00 0300 0010000000000000
		0c00 0400 0200000000000000
		0c00 0800 5a00000000000000
		0c00 0600 0300000000000000
		1000 0780  0c00 0180 0800 0100 03000000
		0c00 0500 6d01000000000000`,
		func() {
			if n, err := Connect(2, a); n != 2 || err != nil {
				t.Errorf("%d, %v", n, err)
			}
		})
}

func TestReconfigure(t *testing.T) {
	withGenl(t, []string{acknowledged},
		`4c000000 2a00 0500 02000000 00000000  03 01 0000
		0800 0100 05000000
		0c00 0200 0000008000000000
		0c00 0400 0200000000000000
		0c00 0800 0500000000000000
		0c00 0600 0000000000000000`,
		func() {
			if err := Reconfigure(5, Attach{Size: 2 << 30, Timeout: 2 * time.Second, DeadTimeout: 5 * time.Second}); err != nil {
				t.Error(err)
			}
		})
}

func TestDisconnectDevice(t *testing.T) {
	const want = `1c000000 2a00 0500 02000000 00000000  02 01 0000  0800 0100 05000000`
	withGenl(t, []string{acknowledged}, want, func() {
		if err := Disconnect(5); err != nil {
			t.Error(err)
		}
	})
	for errno, sentinel := range map[syscall.Errno]error{
		syscall.EINVAL: syscall.EINVAL, syscall.EPERM: rdserr.ErrPerm, syscall.EBUSY: syscall.EBUSY,
	} {
		withGenl(t, []string{refused(errno)}, want, func() {
			if err := Disconnect(5); !errors.Is(err, sentinel) {
				t.Errorf("%v: %v", errno, err)
			}
		})
	}
}

func TestStatus(t *testing.T) {
	// As Linux 6.1 says it, and one device of which it says nothing more.
	list := `4c000000 2a00 0000 02000000 00000000  05 01 0000
		3800 0900
		1400 0100  0800 0100 00000000  0500 0200 01 000000
		1400 0100  0800 0100 01000000  0500 0200 00 000000
		0c00 0100  0800 0100 07000000`
	withGenl(t, []string{list + "|" + acknowledged},
		`14000000 2a00 0500 02000000 00000000  05 01 0000`,
		func() {
			got, err := Status(AnyDevice)
			if err != nil || len(got) != 3 || !got[0] || got[1] || got[7] {
				t.Errorf("%v, %v", got, err)
			}
		})
	withGenl(t, []string{acknowledged}, `1c000000 2a00 0500 02000000 00000000  05 01 0000  0800 0100 03000000`, func() {
		if got, err := Status(3); err != nil || len(got) != 0 {
			t.Errorf("%v, %v", got, err)
		}
	})
}

// TestStatusOfTheFirst: device 0 is a device like others, and asked for by its number.
func TestStatusOfTheFirst(t *testing.T) {
	withGenl(t, []string{acknowledged}, `1c000000 2a00 0500 02000000 00000000  05 01 0000  0800 0100 00000000`, func() {
		if got, err := Status(0); err != nil || len(got) != 0 {
			t.Errorf("%v, %v", got, err)
		}
	})
}

// TestAnswersTogether: messages of any length follow one another in a datagram, each from
// a multiple of four bytes on. Those of another request are passed over.
func TestAnswersTogether(t *testing.T) {
	const mine, other = 2, 1
	var b []byte
	add := func(kind uint16, seq uint32, body string) {
		b = native.AppendUint32(b, uint32(unix.NLMSG_HDRLEN+len(body)))
		b = native.AppendUint16(native.AppendUint16(b, kind), 0)
		b = native.AppendUint32(native.AppendUint32(b, seq), 0)
		for b = append(b, body...); len(b)%4 != 0; {
			b = append(b, 0xff)
		}
	}
	want := []string{"", "a", "ab", "abc", "abcd", "abcde"}
	for _, body := range want {
		add(42, mine, "head"+body)
		add(unix.NLMSG_ERROR, other, "\x01\x00\x00\x00"+body)
	}
	var got [][]byte
	if done, err := parseAnswers(b, mine, &got); done || err != nil || len(got) != len(want) {
		t.Fatalf("before the acknowledgement: %v, %v, %q", done, err, got)
	}
	for i, w := range want {
		if string(got[i]) != w {
			t.Errorf("answer %d is %q, want %q", i, got[i], w)
		}
	}
	add(unix.NLMSG_ERROR, mine, "\x00\x00\x00\x00")
	if done, err := parseAnswers(b, mine, &got); !done || err != nil || len(got) != 2*len(want) {
		t.Errorf("with it: %v, %v, %d answers", done, err, len(got))
	}
}

// TestNoDriver: a kernel without the driver is asked nothing more, and the socket that it
// was asked through is closed.
func TestNoDriver(t *testing.T) {
	noFamily := strings.Replace(refused(syscall.ENOENT), "02000000 00000000", "01000000 00000000", 1)
	fake := &fakeGenl{t: t, answers: []string{noFamily}}
	old := dialGenl
	dialGenl = func() (netlink, error) { return fake, nil }
	defer func() { dialGenl = old }()
	if n, err := Connect(AnyDevice, attached); !errors.Is(err, rdserr.ErrNotSupported) {
		t.Errorf("without a driver: device %d, %v", n, err)
	}
	if len(fake.asked) != 1 || fake.closed != 1 {
		t.Errorf("%d questions, closed %d times", len(fake.asked), fake.closed)
	}
	dialGenl = func() (netlink, error) { return nil, syscall.EMFILE }
	if n, err := Connect(AnyDevice, attached); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("without a socket: device %d, %v", n, err)
	}
}

// TestBadAnswers: the kernel is trusted, but its messages are read with care.
func TestBadAnswers(t *testing.T) {
	for _, answer := range []string{
		`08000000 2a00 0000 02000000 00000000`,                                             // shorter than its header
		`ff000000 2a00 0000 02000000 00000000  01 01 0000`,                                 // longer than the datagram
		`12000000 2a00 0000 02000000 00000000  0101`,                                       // no generic header
		`12000000 0200 0000 02000000 00000000  0000`,                                       // half an acknowledgement
		`18000000 2a00 0000 02000000 00000000  01 01 0000  0200 0100 |` + acknowledged,     // an attribute without a header
		`18000000 2a00 0000 02000000 00000000  01 01 0000  4000 0100 |` + acknowledged,     // a cut attribute
		`1a000000 2a00 0000 02000000 00000000  01 01 0000  0600 0100 0500|` + acknowledged, // half a number
		`14000000 2a00 0000 02000000 00000000  01 01 0000 |` + acknowledged,                // no index
	} {
		withGenl(t, []string{answer}, "", func() {
			if n, err := Connect(AnyDevice, attached); !errors.Is(err, rdserr.ErrProtocol) {
				t.Errorf("%s: device %d, %v", answer, n, err)
			}
		})
	}
}

func TestBadAttach(t *testing.T) {
	for what, change := range map[string]func(*Attach){
		"no timeout":      func(a *Attach) { a.Timeout = 0 },
		"no dead timeout": func(a *Attach) { a.DeadTimeout = 0 },
		"no size":         func(a *Attach) { a.Size = 0 },
		"no block size":   func(a *Attach) { a.BlockSize = 0 },
		"no sockets":      func(a *Attach) { a.Sockets = nil },
		"many sockets":    func(a *Attach) { a.Sockets = make([]int, 65) },
		"backend":         func(a *Attach) { a.Backend = "a\x00" },
	} {
		a := attached
		change(&a)
		if _, err := Connect(AnyDevice, a); !errors.Is(err, rdserr.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := Reconfigure(1, Attach{}); !errors.Is(err, rdserr.ErrInvalid) {
		t.Errorf("reconfigure without timeouts: %v", err)
	}
}

// TestRealNetlink: the true kernel answers, if only that it has no such driver.
func TestRealNetlink(t *testing.T) {
	nl, err := openGenl()
	if err != nil {
		t.Skipf("elsewhere: no generic netlink here: %v", err)
	}
	defer nl.close()
	if id, err := family(nl, "nlctrl"); err != nil || id != unix.GENL_ID_CTRL {
		t.Errorf("family nlctrl: %d, %v", id, err)
	}
	if id, err := family(nl, "nothing-of-ours"); !errors.Is(err, rdserr.ErrNotSupported) {
		t.Errorf("a family that is not there: %d, %v", id, err)
	}
}

// TestFamilyRefused: a kernel that refuses to say what number the driver has is taken at
// its word: no other reason is made of it, and least of all that there is no driver.
func TestFamilyRefused(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EPERM, syscall.ENOMEM} {
		answer := strings.Replace(refused(errno), "02000000 00000000", "01000000 00000000", 1)
		fake := &fakeGenl{t: t, answers: []string{answer}}
		if id, err := family(fake, "nbd"); id != 0 || !errors.Is(err, errno) {
			t.Errorf("family %d, %v; want %v", id, err, errno)
		}
	}
	// The number is there, and after it an attribute longer than the message.
	cut := `20000000 1000 0000 01000000 00000000  01 02 0000  0600 0100 2a00 0000  4000 0300`
	fake := &fakeGenl{t: t, answers: []string{cut + "|" + strings.Replace(acknowledged, "02000000 00000000", "01000000 00000000", 1)}}
	if id, err := family(fake, "nbd"); id != 0 || !errors.Is(err, rdserr.ErrProtocol) {
		t.Errorf("a cut answer: family %d, %v", id, err)
	}
}

// TestNoDescriptors: a process without a free descriptor is told that, and has no socket.
func TestNoDescriptors(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	none := was
	none.Cur = 0
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	nl, err := openGenl()
	kernel, ours, pair := KernelPair()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, unix.EMFILE) || nl != nil {
		t.Errorf("%v, %v; want %v", nl, err, unix.EMFILE)
	}
	if !errors.Is(pair, unix.EMFILE) || kernel != nil || ours != nil {
		t.Errorf("a pair: %v, %v, %v; want %v", kernel, ours, pair, unix.EMFILE)
	}
}

// TestKernelPair: what the kernel's driver would do, through its end of the pair.
func TestKernelPair(t *testing.T) {
	m := memory(t, 1<<20)
	s, _ := serve(t, Options{}, Export{Device: m})
	kernel, ours, err := KernelPair()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.ServeKernel(ours, "") }()
	if _, err := kernel.Write(command(cmdWrite, 0, 1, 0, 512, fill(512, 1))); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, simpleSize)
	if _, err := kernel.Read(b); err != nil || b[7] != 0 {
		t.Errorf("% x, %v", b, err)
	}
	kernel.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if want := uint64(FlagHasFlags | FlagSendFlush | FlagSendFUA | FlagSendTrim | FlagSendWriteZeroes | FlagCanMultiConn); KernelFlags(m.Info()) != want {
		t.Errorf("flags %#x, want %#x", KernelFlags(m.Info()), want)
	}
	if want := uint64(FlagReadOnly); KernelFlags(blk.ReadOnly(m).Info())&(want|FlagSendTrim) != want {
		t.Errorf("flags of a read-only device %#x", KernelFlags(blk.ReadOnly(m).Info()))
	}
}

func TestSetMaxRequest(t *testing.T) {
	old := sysBlock
	defer func() { sysBlock = old }()
	sysBlock = t.TempDir()
	queue := filepath.Join(sysBlock, "nbd3", "queue")
	if err := os.MkdirAll(queue, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"max_hw_sectors_kb": "32767\n", "max_sectors_kb": "1280"} {
		if err := os.WriteFile(filepath.Join(queue, name), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for n, want := range map[int]string{4 << 20: "4096", 1 << 30: "32767", 0: "4"} {
		if err := SetMaxRequest(3, n); err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(filepath.Join(queue, "max_sectors_kb")); string(got) != want {
			t.Errorf("%d bytes: %q, want %q", n, got, want)
		}
	}
	// Who may not write there need not, where that is set already. Writing would have replaced the line.
	if err := os.WriteFile(filepath.Join(queue, "max_sectors_kb"), []byte("1024\n"), 0o400); err != nil {
		t.Fatal(err)
	}
	if err := SetMaxRequest(3, 1<<20); err != nil {
		t.Error(err)
	}
	if got, _ := os.ReadFile(filepath.Join(queue, "max_sectors_kb")); string(got) != "1024\n" {
		t.Errorf("what was right is written again: %q", got)
	}
	if err := SetMaxRequest(4, 1<<20); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a device that is not there: %v", err)
	}
}

// TestBackend: a device that the kernel would know by something, if it were attached over
// netlink, is known by nothing.
func TestBackend(t *testing.T) {
	block, release := sysBlock, kernelRelease
	defer func() { sysBlock, kernelRelease = block, release }()
	sysBlock = t.TempDir()
	look := func(what, release, want string, told bool) {
		t.Helper()
		kernelRelease = func() string { return release }
		if b, ok := Backend(3); ok != told || b != want {
			t.Errorf("%s, Linux %q: %q, %v", what, release, b, ok)
		}
	}
	look("no device", "6.1.0-21-amd64", "", false)
	dir := filepath.Join(sysBlock, "nbd3")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, r := range []string{"5.14.0", "5.14.0-427.el9.x86_64", "6.1.0-21-amd64", "10.0"} {
		look("no file", r, "", true)
	}
	for _, r := range []string{"5.13.19", "4.18.0-553.el8.x86_64", "", "next"} {
		look("no file", r, "", false)
	}
	for _, text := range []string{"rdsd:v1:07", ""} {
		if err := os.WriteFile(filepath.Join(dir, "backend"), []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		look("a file", "6.1.0", text, true)
		look("a file", "4.18.0-553.el8.x86_64", text, true)
	}
}
