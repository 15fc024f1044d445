package rdstools

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/rdsd/rdsd/rdsd/internal/dial"
)

// Version is the version of rds-tools whose behaviour this package has.
const Version = "2.0.7"

type tool func(context.Context, []string, io.Writer, io.Writer) int

var tools = map[string]tool{
	"rds-ping":   runPing,
	"rds-info":   runInfo,
	"rds-stress": runStress,
}

// Has reports whether name is one of the tools.
func Has(name string) bool { return tools[name] != nil }

// Run runs the named tool and returns its exit status: 0, 1 on failure, and
// for rds-stress 2 on wrong usage, as the old tools have it.
func Run(ctx context.Context, name string, args []string, out, errw io.Writer) int {
	return tools[name](ctx, args, out, errw)
}

// newFlags makes a flag set that stops at the first argument, as getopt does
// with "+".
func newFlags(name string, socket *string) *pflag.FlagSet {
	f := pflag.NewFlagSet(name, pflag.ContinueOnError)
	f.SetInterspersed(false)
	f.SetOutput(io.Discard)
	f.SortFlags = false
	f.StringVar(socket, "socket", "", "the daemon's socket (default $RDSD_SOCKET, else /run/rdsd/rdsd.sock)")
	return f
}

// number is a flag that reads 4096, 0x1000, 4k, 1M or 2G, up to max.
type number struct {
	value *uint64
	max   uint64
}

func (n number) String() string {
	if n.value == nil {
		return ""
	}
	return strconv.FormatUint(*n.value, 10)
}

func (n number) Type() string { return "nr" }

func (n number) Set(s string) error {
	v, err := parseNumber(s)
	if err != nil {
		return err
	}
	if v > n.max {
		return fmt.Errorf("%d is too large: at most %d", v, n.max)
	}
	*n.value = v
	return nil
}

// parseNumber reads a number in any base of C, with k, m or g for powers of 1024.
func parseNumber(s string) (uint64, error) {
	shift := 0
	digits := s
	if s != "" {
		switch s[len(s)-1] {
		case 'k', 'K':
			shift = 10
		case 'm', 'M':
			shift = 20
		case 'g', 'G':
			shift = 30
		}
	}
	if shift > 0 {
		digits = s[:len(s)-1]
	}
	v, err := strconv.ParseUint(digits, 0, 64)
	if err != nil || v > ^uint64(0)>>shift {
		return 0, fmt.Errorf("invalid number '%s'", s)
	}
	return v << shift, nil
}

// parseInterval reads seconds ("0.5"), "10ms", "10msec", "50us" or "50usec".
func parseInterval(s string) (time.Duration, error) {
	unit := float64(time.Second)
	digits := s
	for _, u := range []struct {
		suffix string
		unit   time.Duration
	}{{"msec", time.Millisecond}, {"ms", time.Millisecond}, {"usec", time.Microsecond}, {"us", time.Microsecond}} {
		if rest, ok := strings.CutSuffix(s, u.suffix); ok {
			digits, unit = rest, float64(u.unit)
			break
		}
	}
	v, err := strconv.ParseFloat(digits, 64)
	if err != nil || !(v >= 0 && v*unit <= float64(1<<62)) { // NaN too
		return 0, fmt.Errorf("bad wait time <%s>: seconds such as 0.5, or 10ms, or 50us", s)
	}
	return time.Duration(v * unit), nil
}

// resolve reads an address or a host name.
func resolve(ctx context.Context, s string) (netip.Addr, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return a.Unmap(), nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", s)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("invalid host name or address '%s'", s)
	}
	for _, a := range addrs {
		if a.Unmap().Is4() {
			return a.Unmap(), nil
		}
	}
	return addrs[0], nil
}

// reason is the daemon's words for err.
func reason(err error) string { return dial.Cause(err).Error() }

// capital begins a message as the old tools begin theirs.
func capital(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
