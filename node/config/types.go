package config

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Bytes is a size. Its text form is a number with an optional unit: B, KiB,
// MiB, GiB, TiB (powers of 1024). K, M and G alone are refused as ambiguous.
type Bytes uint64

var byteUnits = []struct {
	name string
	size uint64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// UnmarshalText reads "64KiB" or "65536".
func (b *Bytes) UnmarshalText(text []byte) error {
	s := strings.TrimSpace(string(text))
	unit := uint64(1)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(s, u.name); ok {
			s, unit = strings.TrimSpace(rest), u.size
			break
		}
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return fmt.Errorf("%q is not a size (units are B, KiB, MiB, GiB, TiB)", text)
	}
	if n > math.MaxInt64/unit {
		return fmt.Errorf("%q is too large", text)
	}
	*b = Bytes(n * unit)
	return nil
}

// MarshalText is the inverse of UnmarshalText, with the largest unit that is exact.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

func (b Bytes) String() string {
	for _, u := range byteUnits {
		if b != 0 && uint64(b)%u.size == 0 && u.size > 1 {
			return strconv.FormatUint(uint64(b)/u.size, 10) + u.name
		}
	}
	return strconv.FormatUint(uint64(b), 10)
}

// Duration is a time.Duration whose text form is "1.5s".
type Duration struct{ time.Duration }

// UnmarshalText reads what time.ParseDuration reads.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a duration of at most 2562047h (write a unit: \"100ms\", \"5s\", \"1m30s\")", text)
	}
	d.Duration = v
	return nil
}

// MarshalText is the inverse of UnmarshalText.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// FileMode is Unix permissions; its text form is octal. It is a struct so that
// the decoder reads a bare 660 as octal too, not as the number 660.
type FileMode struct{ Perm fs.FileMode }

// UnmarshalText reads "0660", "660" or "0o660".
func (m *FileMode) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(strings.TrimPrefix(string(text), "0o"), 8, 32)
	if err != nil || n > 0o777 {
		return fmt.Errorf("%q is not a file mode", text)
	}
	m.Perm = fs.FileMode(n)
	return nil
}

// MarshalText is the inverse of UnmarshalText.
func (m FileMode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

func (m FileMode) String() string { return fmt.Sprintf("%04o", uint32(m.Perm)) }

// LogLevel is one of slog's four levels.
type LogLevel struct{ slog.Level }

// UnmarshalText reads debug, info, warn or error.
func (l *LogLevel) UnmarshalText(text []byte) error {
	switch strings.ToLower(string(text)) {
	case "debug":
		l.Level = slog.LevelDebug
	case "info":
		l.Level = slog.LevelInfo
	case "warn", "warning":
		l.Level = slog.LevelWarn
	case "error":
		l.Level = slog.LevelError
	default:
		return fmt.Errorf("%q is not a log level", text)
	}
	return nil
}

// MarshalText is the inverse of UnmarshalText.
func (l LogLevel) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

func (l LogLevel) String() string { return strings.ToLower(l.Level.String()) }

// PortRange is RDS ports First to Last, both included.
type PortRange struct{ First, Last uint16 }

// UnmarshalText reads "5000-5999" or "5000".
func (r *PortRange) UnmarshalText(text []byte) error {
	first, last, isRange := strings.Cut(string(text), "-")
	if !isRange {
		last = first
	}
	a, errA := strconv.ParseUint(strings.TrimSpace(first), 10, 16)
	b, errB := strconv.ParseUint(strings.TrimSpace(last), 10, 16)
	if errors.Join(errA, errB) != nil {
		return fmt.Errorf("%q is not a port range", text)
	}
	if a > b {
		return fmt.Errorf("%q ends before it begins", text)
	}
	*r = PortRange{uint16(a), uint16(b)}
	return nil
}

// MarshalText is the inverse of UnmarshalText.
func (r PortRange) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

func (r PortRange) String() string {
	if r.First == r.Last {
		return strconv.Itoa(int(r.First))
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// Contains tells whether port is in the range.
func (r PortRange) Contains(port uint16) bool { return r.First <= port && port <= r.Last }

// Prefix is a subnet; a bare address is a subnet of one. One of IPv4 that is written as of IPv6
// (::ffff:10.0.0.0/104) is of IPv4, as addresses of peers are: no such address lies in the other.
type Prefix struct{ netip.Prefix }

// UnmarshalText reads "10.0.0.0/24" or "10.0.0.7".
func (p *Prefix) UnmarshalText(text []byte) error {
	s := string(text)
	if strings.Contains(s, "/") {
		v, err := netip.ParsePrefix(s)
		if err != nil {
			return fmt.Errorf("%q is not a subnet", text)
		}
		if v.Addr().Is4In6() && v.Bits() >= 96 {
			v = netip.PrefixFrom(v.Addr().Unmap(), v.Bits()-96)
		}
		if v.Masked() != v {
			return fmt.Errorf("%q has bits beyond its mask; %q is the subnet", text, v.Masked())
		}
		p.Prefix = v
		return nil
	}
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return fmt.Errorf("%q is not an address or subnet", text)
	}
	a = a.Unmap()
	p.Prefix = netip.PrefixFrom(a, a.BitLen())
	return nil
}

// MarshalText is the inverse of UnmarshalText.
func (p Prefix) MarshalText() ([]byte, error) { return []byte(p.String()), nil }
