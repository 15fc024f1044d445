package blk

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/eintr"
	"github.com/rdsd/rdsd/rdserr"
)

// bothWays runs a test with openat2 and as on a kernel without it.
func bothWays(t *testing.T, f func(*testing.T)) {
	t.Run("openat2", f)
	t.Run("openat", func(t *testing.T) {
		old := openat2
		openat2 = func(int, string, *unix.OpenHow) (int, error) { return -1, unix.ENOSYS }
		defer func() { openat2 = old }()
		f(t)
	})
}

// TestNamesAsLongAsTheyMayBe: 255 bytes of a part and 4095 of a name, as Linux has it.
func TestNamesAsLongAsTheyMayBe(t *testing.T) {
	part := strings.Repeat("p", 255)
	name := strings.Repeat(part+"/", 15) + part // 16 times 255 and 15: 4095
	for _, c := range []struct {
		name string
		want error
	}{{part, nil}, {part + "p", rdserr.ErrInvalid}, {name, nil}, {name[1:] + "/p", rdserr.ErrInvalid}, {"", rdserr.ErrInvalid}} {
		if err := CheckName(c.name); !errors.Is(err, c.want) {
			t.Errorf("%d bytes: %v, want %v", len(c.name), err, c.want)
		}
	}
}

// exportRoot is a directory with one of everything in it, beside a secret.
func exportRoot(t *testing.T) *Root {
	t.Helper()
	top := t.TempDir()
	dir := filepath.Join(top, "root")
	for _, d := range []string{dir, filepath.Join(dir, "sub")} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{top + "/secret", dir + "/good", dir + "/sub/good"} {
		if err := os.WriteFile(f, make([]byte, 4096), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"absolute": top + "/secret", "relative": "../secret", "inside": "good", "up": "..", "down": "sub"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(dir+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err := net.Listen("unix", dir+"/sock"); err == nil { // the path may be too long for one
		t.Cleanup(func() { l.Close() })
	} else if err := os.Mkdir(dir+"/sock", 0o700); err != nil {
		t.Fatal(err)
	}
	r, err := OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// TestRoot: nothing outside of the root can be opened, nothing that is no file
// or block device, and nothing keeps the caller waiting.
func TestRoot(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		r := exportRoot(t)
		for _, name := range []string{"good", "sub/good"} {
			f, err := r.Open(name, FileOptions{})
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			f.Close()
		}
		for name, want := range map[string]error{
			"":                                rdserr.ErrInvalid,
			".":                               rdserr.ErrInvalid,
			"..":                              rdserr.ErrInvalid,
			"../secret":                       rdserr.ErrInvalid,
			"sub/../../secret":                rdserr.ErrInvalid,
			"./good":                          rdserr.ErrInvalid,
			"/etc/passwd":                     rdserr.ErrInvalid,
			"sub//good":                       rdserr.ErrInvalid,
			"good/":                           rdserr.ErrInvalid,
			"go\x00od":                        rdserr.ErrInvalid,
			strings.Repeat("x", 256):          rdserr.ErrInvalid,
			strings.Repeat("x/", 3000):        rdserr.ErrInvalid,
			"sub":                             rdserr.ErrInvalid,
			"fifo":                            rdserr.ErrInvalid,
			"sock":                            rdserr.ErrInvalid,
			"absolute":                        nil,
			"relative":                        nil,
			"inside":                          nil,
			"up/secret":                       nil,
			"down/good":                       nil,
			"good/below":                      syscall.ENOTDIR,
			"nowhere":                         os.ErrNotExist,
			"sub/nowhere":                     os.ErrNotExist,
			"proc/self/root/etc/passwd":       os.ErrNotExist,
			"sub/" + strings.Repeat("x", 256): rdserr.ErrInvalid,
		} {
			f, err := r.Open(name, FileOptions{ReadOnly: true})
			if err == nil {
				f.Close()
				t.Errorf("%.20q was opened", name)
			} else if want != nil && !errors.Is(err, want) {
				t.Errorf("%.20q: %v, want %v", name, err, want)
			}
		}
	})
}

// TestRootSwap: while the name is opened somebody exchanges the file for a link
// that leads out. What is opened is never what the link leads to.
func TestRootSwap(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		r := exportRoot(t)
		dir := r.path
		if err := os.Truncate(filepath.Dir(dir)+"/secret", 8192); err != nil {
			t.Fatal(err)
		}
		stop, stopped := make(chan bool), make(chan bool)
		go func() {
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				default:
					unix.Renameat2(unix.AT_FDCWD, dir+"/good", unix.AT_FDCWD, dir+"/relative", unix.RENAME_EXCHANGE)
				}
			}
		}()
		opened := 0
		for range 500 {
			f, err := r.Open("good", FileOptions{ReadOnly: true})
			if err != nil {
				continue
			}
			opened++
			if f.Info().Size != 4096 {
				t.Errorf("a file of %d bytes was opened: the one outside", f.Info().Size)
			}
			f.Close()
		}
		close(stop)
		<-stopped
		if opened == 0 || opened == 500 {
			t.Logf("%d of 500 were opened: the exchange had no chance", opened)
		}
	})
}

// TestNoCharacterDevices: they are not opened, not even for a look.
func TestNoCharacterDevices(t *testing.T) {
	for _, path := range []string{"/dev/null", "/dev/zero"} {
		if _, err := OpenFile(path, FileOptions{}); !errors.Is(err, rdserr.ErrInvalid) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := OpenRoot("/dev/null"); err == nil {
		t.Error("a device was taken as a root")
	}
	if _, err := OpenFile(t.TempDir(), FileOptions{}); !errors.Is(err, rdserr.ErrInvalid) {
		t.Errorf("a directory: %v", err)
	}
}

// TestRootThatIsLate: a directory is held by whoever looks below it first. Who lets it go does not
// wait for who waits for it, and then nothing is held.
func TestRootThatIsLate(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	r := NewRoot(dir + "/late")
	if err := r.Hold(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is not there: %v", err)
	}
	if err := os.Symlink(dir, dir+"/late"); err != nil {
		t.Fatal(err)
	}
	f, err := r.Open("a", FileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	asked, release, got := make(chan int), make(chan struct{}), -1
	openRoot = func(path string, flags int, mode uint32) (int, error) {
		asked <- 1
		<-release
		fd, err := eintr.Open(path, flags, mode)
		got = fd
		return fd, err
	}
	t.Cleanup(func() { openRoot = eintr.Open })
	r = NewRoot(dir)
	done := make(chan error)
	go func() { done <- r.Hold() }()
	<-asked
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	close(release)
	if err := <-done; !errors.Is(err, os.ErrClosed) {
		t.Errorf("held after it was let go: %v", err)
	}
	if _, err := unix.FcntlInt(uintptr(got), unix.F_GETFD, 0); err != unix.EBADF {
		t.Errorf("descriptor %d stays open: %v", got, err)
	}
	if _, err := r.Open("a", FileOptions{}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("opened below what was let go: %v", err)
	}
}

// TestTrustedLink: the administrator's own path may be a link.
func TestTrustedLink(t *testing.T) {
	r := exportRoot(t)
	f, err := OpenFile(r.path+"/absolute", FileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

// TestOpenWithoutProc: a file that cannot be opened for want of /proc is not called missing.
func TestOpenWithoutProc(t *testing.T) {
	r := exportRoot(t)
	old := selfFDs
	t.Cleanup(func() { selfFDs = old })
	selfFDs = filepath.Join(t.TempDir(), "none")
	_, err := r.Open("good", FileOptions{})
	_, err2 := OpenFile(filepath.Join(r.path, "good"), FileOptions{})
	for _, err := range []error{err, err2} {
		if !errors.Is(err, syscall.ENOSYS) || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "without /proc") {
			t.Errorf("without /proc: %v", err)
		}
	}
	if _, err := r.Open("none", FileOptions{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is missing: %v", err)
	}
}
