package plain

import (
	"fmt"
	"time"
)

// Bytes is a number of bytes, or of bytes a second, in KiB, MiB and so on.
func Bytes(v float64) string {
	if v < 1024 {
		return fmt.Sprintf("%.0f B", v)
	}
	v, unit := v/1024, 0
	for v >= 1024 && unit < 4 {
		v, unit = v/1024, unit+1
	}
	return fmt.Sprintf("%.1f %ciB", v, "KMGTP"[unit])
}

// Duration is a time rounded to what people read of it, "-" for none.
func Duration(t time.Duration) string {
	switch {
	case t == 0:
		return "-"
	case t < time.Microsecond:
		return t.String()
	case t < time.Millisecond:
		return t.Round(100 * time.Nanosecond).String()
	case t < time.Second:
		return t.Round(10 * time.Microsecond).String()
	case t < time.Minute:
		return t.Round(100 * time.Millisecond).String()
	}
	return t.Round(time.Second).String()
}
