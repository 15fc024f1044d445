package cli

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// congestionHistory shows the last hour, of all ports or of one.
func (a *app) congestionHistory(ctx context.Context, args []string) error {
	var port netip.AddrPort
	if len(args) > 0 {
		var err error
		if port, err = netip.ParseAddrPort(args[0]); err != nil {
			return usagef("%q is no address and port; want one such as 10.0.0.7:4000", args[0])
		}
	}
	return a.read(ctx, func(ctx context.Context, c source) error {
		h, err := c.CongestionHistory(ctx, port)
		if err != nil {
			return err
		}
		if a.json {
			return writeJSON(a.out, h)
		}
		if err := printList(a, h.Ports, historyColumns(h), "no port was congested in the last hour"); err != nil || a.form == formTSV {
			return err
		}
		if o := &h.Others; o.CongestedFor > 0 {
			fmt.Fprintf(a.out, "others, which are not kept one by one: %s together, %d congested now\n", duration(o.CongestedFor), o.CongestedPorts)
		}
		return nil
	})
}

func historyColumns(h *rdsd.CongestionHistory) []column[rdsd.PortHistory] {
	return []column[rdsd.PortHistory]{
		{"port", func(p rdsd.PortHistory) any { return endpointText(p.Endpoint) }},
		{"where", func(p rdsd.PortHistory) any { return where(p.Local) }},
		{"now", func(p rdsd.PortHistory) any { return map[bool]string{true: "CONGESTED", false: "clear"}[p.Congested] }},
		{"congested", func(p rdsd.PortHistory) any { return duration(p.CongestedFor) }},
		{"times", func(p rdsd.PortHistory) any { return p.Times }},
		{"when", func(p rdsd.PortHistory) any { return whenCongested(h, p) }},
		{"reader", func(p rdsd.PortHistory) any {
			if p.ReaderPID == 0 {
				return "-"
			}
			return strings.TrimSpace(fmt.Sprintf("%s pid %d (uid %d)", p.ReaderProgram, p.ReaderPID, p.ReaderUID))
		}},
		{"filled by", func(p rdsd.PortHistory) any {
			if len(p.Culprits) == 0 {
				return "-"
			}
			return endpointText(p.Culprits[0].Source)
		}},
	}
}

// shades are the marks of a share of time, of which none is no mark.
const shades = ".:+#"

// whenMarks is how many marks an hour takes.
const whenMarks = 30

// whenCongested draws the hour, oldest first.
func whenCongested(h *rdsd.CongestionHistory, p rdsd.PortHistory) string {
	if h.Slots <= 0 || h.Slot <= 0 {
		return ""
	}
	var in [whenMarks]time.Duration
	for _, s := range p.Slots {
		if s.Index >= 0 && s.Index < h.Slots {
			in[s.Index*whenMarks/h.Slots] += s.CongestedFor
		}
	}
	each := h.Slot * time.Duration(h.Slots) / whenMarks
	marks := slices.Repeat([]byte{' '}, whenMarks)
	for i, d := range in {
		if d > 0 {
			marks[i] = shades[min(int(d*time.Duration(len(shades))/each), len(shades)-1)]
		}
	}
	return "|" + string(marks) + "|"
}
