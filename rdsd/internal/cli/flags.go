package cli

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagError says of a flag's value what would be right: the flag package tells which
// function of Go did not understand it.
func flagError(_ *cobra.Command, err error) error {
	bad, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return withCode(exitUsage, err)
	}
	want := wantedValue(bad.GetFlag().Value.Type())
	if errors.Is(err, strconv.ErrRange) && want != "" { // it is what is wanted, but for its size
		return usagef("--%s %q is out of range; want %s", bad.GetFlag().Name, bad.GetValue(), want)
	}
	if want != "" {
		return usagef("--%s %q: want %s", bad.GetFlag().Name, bad.GetValue(), want)
	}
	return withCode(exitUsage, err)
}

// wantedValue describes the values of a flag's type; "" where the package's own words do.
func wantedValue(kind string) string {
	switch {
	case kind == "duration":
		return "a time with its unit, such as 500ms, 5s or 1m30s"
	case kind == "uint16":
		return "a whole number from 0 to 65535"
	case kind == "uint32":
		return "a whole number from 0 to 4294967295"
	case strings.HasPrefix(kind, "uint"):
		return "a whole number that is not negative"
	case strings.HasPrefix(kind, "int"):
		return "a whole number"
	case strings.HasPrefix(kind, "float"):
		return "a number"
	}
	return ""
}

// checkTimes refuses times before 0, which none of the flags has a meaning for: a wait
// of less than nothing would be one without an end, or none at all.
func checkTimes(cmd *cobra.Command) error {
	var wrong error
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Value.Type() != "duration" || wrong != nil {
			return
		}
		if d, err := time.ParseDuration(f.Value.String()); err == nil && d < 0 {
			wrong = usagef("--%s %v: it cannot be negative", f.Name, d)
		}
	})
	return wrong
}
