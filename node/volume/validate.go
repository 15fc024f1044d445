package volume

import (
	"errors"
	"io/fs"
	"math/bits"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rtrs"
)

// headerRoom is what a chunk has beside the data of a request: the kernel's page.
const headerRoom = 4 << 10

// defaults fills in what is zero.
func (c *Config) defaults() {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	dur := func(p *time.Duration, v time.Duration) {
		if *p == 0 {
			*p = v
		}
	}
	str := func(p *string, v string) {
		if *p == "" {
			*p = v
		}
	}
	if c.Port == 0 {
		c.Port = DefaultPort
	}
	if c.AlwaysInvalidate == nil {
		on := true
		c.AlwaysInvalidate = &on
	}
	str(&c.Listen, ListenAuto)
	str(&c.Name, hostName())
	str(&c.SocketDir, c.StateDir)
	str(&c.OnLoss, OnLossWait)
	str(&c.Unfenced, UnfencedAfter)
	str(&c.Policy, rtrs.MinInflight.String())
	str(&c.Attach, AsSocket)
	def(&c.QueueDepth, 512)
	def(&c.MaxIO, 256<<10)
	def(&c.MaxSessions, 256)
	def(&c.MaxConnections, 32<<10)
	def(&c.Connections, 1)
	def(&c.MissedLimit, 4)
	def(&c.MaxReconnects, NoLimit)
	def(&c.MaxMappings, 256)
	def(&c.MaxExports, 1024)
	dur(&c.Heartbeat, 200*time.Millisecond)
	dur(&c.ReconnectMin, 100*time.Millisecond)
	dur(&c.ReconnectMax, 5*time.Second)
	dur(&c.IOTimeout, 30*time.Second)
	dur(&c.LossTimeout, 30*time.Second)
	dur(&c.UnfencedAfter, 40*time.Second)
	dur(&c.NBDTimeout, 10*time.Second)
	dur(&c.DeadTimeout, time.Minute)
	if c.SocketMode == 0 {
		c.SocketMode = 0o600
	}
}

// hostName is the name of this machine as a part of a session's name.
func hostName() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		name = "rdsd"
	}
	return sessionPart(name)
}

// sessionPart replaces what the name of a session may not have.
func sessionPart(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '/' || r == '.' || r == ':' || r <= ' ' || r == utf8.RuneError {
			return '_'
		}
		return r
	}, s)
}

// Validate checks the configuration, with the defaults filled in. The error
// names each wrong key and what would be right.
func (c Config) Validate() error {
	c.defaults()
	v := &checker{}
	seen := map[netip.Addr]bool{}
	for _, a := range c.Addresses {
		v.check("addresses", a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && !seen[a], "%v is not the address of one node, or there twice", a)
		seen[a] = true
	}
	v.check("listen", slices.Contains([]string{ListenAuto, ListenAlways, ListenNever}, c.Listen), `%q; want "auto", "always" or "never"`, c.Listen)
	v.err("name", CheckSessionName(c.Name))
	v.check("state_dir", c.StateDir == "" || filepath.IsAbs(c.StateDir), "%q; want an absolute path", c.StateDir)
	v.check("socket_dir", c.SocketDir == "" || filepath.IsAbs(c.SocketDir), "%q; want an absolute path", c.SocketDir)

	v.between("queue_depth", c.QueueDepth, 1, 4095)
	v.between("max_io_bytes", c.MaxIO, 4<<10, 32<<20)
	v.check("max_io_bytes", c.MaxIO%4096 == 0, "%d; want a multiple of 4096", c.MaxIO)
	if c.QueueDepth > 0 && c.MaxIO > 0 {
		log2 := func(n int) int { return bits.Len(uint(n - 1)) }
		v.check("queue_depth", log2(c.QueueDepth)+log2(c.MaxIO+headerRoom) <= 28,
			"%d requests of max_io_bytes %d are more than an immediate can address; want less of one of them", c.QueueDepth, c.MaxIO)
	}
	v.between("max_sessions", c.MaxSessions, 1, 65536)
	v.between("max_connections", c.MaxConnections, 2, 1<<20)
	v.between("connections", c.Connections, 1, 16)
	v.between("heartbeat_missed", c.MissedLimit, 2, 100)
	v.between("max_mappings", c.MaxMappings, 1, 65536)
	v.between("max_exports", c.MaxExports, 1, 1<<20)
	v.duration("heartbeat_interval", c.Heartbeat, 10*time.Millisecond, time.Minute)
	v.duration("reconnect_min", c.ReconnectMin, time.Millisecond, c.ReconnectMax)
	v.duration("reconnect_max", c.ReconnectMax, time.Millisecond, 10*time.Minute)
	v.duration("io_timeout", c.IOTimeout, minIOTimeout, maxTimeout)
	v.duration("loss_timeout", c.LossTimeout, time.Millisecond, maxTimeout)
	v.duration("nbd_timeout", c.NBDTimeout, time.Second, maxTimeout)
	v.duration("nbd_dead_timeout", c.DeadTimeout, time.Second, maxTimeout)
	v.check("socket_mode", c.SocketMode&^fs.ModePerm == 0, "%v; want permissions, 0000 to 0777", c.SocketMode)
	v.check("on_loss", c.OnLoss == OnLossWait || c.OnLoss == OnLossError, `%q; want "wait" or "error"`, c.OnLoss)
	v.err("unfenced", checkUnfenced(c.Unfenced))
	v.duration("unfenced_after", c.UnfencedAfter, minUnfenced, maxTimeout)
	v.check("max_reconnect_attempts", checkReconnects(c.MaxReconnects), "%d; want -1 (without end) or 1 to %d", c.MaxReconnects, maxReconnects)
	v.check("attach", c.Attach == AsSocket || c.Attach == AsNBD, `%q; want "socket" or "nbd"`, c.Attach)
	_, err := rtrs.ParsePolicy(c.Policy)
	v.err("policy", err)

	names := map[string]bool{}
	for _, e := range c.Exports {
		v.err("exports", e.check())
		v.check("exports", !names[e.Name], "%q is there twice", e.Name)
		names[e.Name] = true
	}
	for _, r := range c.Roots {
		v.check("roots", filepath.IsAbs(r.Path), "path %q; want an absolute path", r.Path)
		v.err("roots", checkGlobs(r.Sessions))
	}
	return errors.Join(v.errs...)
}

// Bounds of what an administrator may set.
const (
	minIOTimeout  = 100 * time.Millisecond
	minUnfenced   = time.Second
	maxTimeout    = 24 * time.Hour
	maxReconnects = 9999 // the kernel's
)

func checkUnfenced(s string) error {
	if !slices.Contains(unfencedWords[:], s) {
		return rdserr.With(rdserr.ErrInvalid, "%q; want after, now or wait", s)
	}
	return nil
}

func checkReconnects(n int) bool { return n == NoLimit || n >= 1 && n <= maxReconnects }

type checker struct{ errs []error }

func (v *checker) check(key string, ok bool, format string, args ...any) {
	if !ok {
		v.errs = append(v.errs, rdserr.With(rdserr.ErrInvalid, "volumes."+key+": "+format, args...))
	}
}

func (v *checker) err(key string, err error) { v.check(key, err == nil, "%v", err) }

func (v *checker) between(key string, n, lo, hi int) {
	v.check(key, lo <= n && n <= hi, "%d; want %d to %d", n, lo, hi)
}

func (v *checker) duration(key string, d, lo, hi time.Duration) {
	v.check(key, lo <= d && d <= hi, "%v; want %v to %v", d, lo, hi)
}

// CheckSessionName tells whether RTRS takes the name of a session.
func CheckSessionName(s string) error {
	if s == "" || len(s) > 254 || !utf8.ValidString(s) || strings.ContainsAny(s, "/.\x00") {
		return rdserr.With(rdserr.ErrInvalid, "name of a session %.40q: want 1 to 254 bytes of UTF-8 without %q and %q", s, "/", ".")
	}
	return nil
}

// checkGlobs checks patterns of session names.
func checkGlobs(l []string) error {
	for _, g := range l {
		if g == "" || len(g) > 254 {
			return rdserr.With(rdserr.ErrInvalid, "pattern %.40q of session names: want 1 to 254 bytes, with * and ?", g)
		}
	}
	return nil
}

// check tells what is wrong with s by itself.
func (s *ExportSpec) check() error {
	bad := func(format string, args ...any) error {
		return rdserr.With(rdserr.ErrInvalid, "export %.40q: "+format, append([]any{s.Name}, args...)...)
	}
	if err := blk.CheckName(s.Name); err != nil {
		return err
	}
	memory := s.Kind == KindMemory || s.Kind == "" && s.Path == ""
	switch {
	case len(s.Name) > maxName || !utf8.ValidString(s.Name):
		return bad("the name has %d bytes; want at most %d of UTF-8", len(s.Name), maxName)
	case !slices.Contains([]string{"", KindFile, KindBlock, KindMemory}, s.Kind):
		return bad("kind %q; want file, block or memory", s.Kind)
	case memory && s.Path != "":
		return bad("memory has no path, but %q was given", s.Path)
	case memory && s.Size == 0:
		return bad("want a size (memory), or a path (a file or block device)")
	case memory && s.Create, s.Create && s.Kind == KindBlock:
		return bad("only a file can be created")
	case memory && s.Persist:
		return bad("memory ends with the daemon and cannot persist; want a file, or no persist")
	case !memory && !filepath.IsAbs(s.Path):
		return bad("path %q; want an absolute one", s.Path)
	case s.Create && s.Size == 0:
		return bad("want the size of the file to create")
	case s.Create && s.ReadOnly:
		return bad("a file that is created read-only could never hold anything")
	case !memory && !s.Create && s.Size != 0:
		return bad("a size goes with memory, or with a file to create")
	case s.LogicalBlock != 0 && s.LogicalBlock != 512 && s.LogicalBlock != 4096:
		return bad("logical block size %d; want 512 or 4096", s.LogicalBlock)
	case s.Size > blk.MaxSize || s.Size%uint64(max(s.LogicalBlock, 512)) != 0:
		return bad("size %d; want a multiple of the logical block size %d, at most %d", s.Size, max(s.LogicalBlock, 512), uint64(blk.MaxSize))
	}
	for _, p := range s.Allow {
		if !p.IsValid() || p.Masked() != p {
			return bad("%v is not a subnet", p)
		}
	}
	return checkGlobs(s.Sessions)
}

// maxName bounds the name of a volume, in bytes: RNBD's field with a NUL.
const maxName = 254
