package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdsd/rdsd/internal/plain"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// The exit codes of check are those of plugins for monitors, and not those of the
// other commands.
const (
	checkOK = iota
	checkWarning
	checkCritical
	checkUnknown
)

var checkWords = [...]string{"OK", "WARNING", "CRITICAL", "UNKNOWN"}

// checkView is what `check --format json` prints.
type checkView struct {
	Exit     int            `json:"exit"`
	State    string         `json:"state"`
	Summary  string         `json:"summary"`
	Problems []rdsd.Problem `json:"problems"`

	status *rdsd.Status
}

func (a *app) checkCmd() *cobra.Command {
	format := "text"
	cmd := &cobra.Command{
		Use:   "check",
		Short: "say in one line and an exit code whether the daemon is healthy, for monitors",
		Long: `Ask the daemon for its problems (see 'rdsd status') and sum them up for a monitor.
The exit code is that of plugins for Nagios, Icinga, Zabbix and others, and not
that of the other commands:

  0  OK        no problem is a warning or an error
  1  WARNING   the worst problem is a warning
  2  CRITICAL  the worst problem is an error, or no daemon answers
  3  UNKNOWN   it could not be told: wrong arguments, no right, no time

--format nagios prints one line with performance data, then one for each problem;
json the same for programs.`,
		Example: `  rdsd check
  rdsd check --format nagios
  rdsd check --format json`,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if a.json {
			format = "json"
		}
		if format != "text" && format != "nagios" && format != "json" {
			return withCode(checkUnknown, fmt.Errorf("--format %q: want text, nagios or json", format))
		}
		var v checkView
		err := a.read(cmd.Context(), func(ctx context.Context, c source) error {
			st, err := c.Status(ctx)
			if err == nil {
				v = check(st)
			}
			return err
		})
		if err != nil {
			v = checkView{Exit: checkUnknown, Summary: strings.ReplaceAll(explain(err), "\n", " "), Problems: []rdsd.Problem{}}
			if exitOf(err) == exitUnreachable {
				v.Exit = checkCritical
			}
		}
		v.State = checkWords[v.Exit]
		var b bytes.Buffer
		err = printCheck(&b, v, format)
		if err == nil {
			_, err = a.out.Write(b.Bytes())
		}
		// What is wrong counts, told or not; but that all is well nobody has been told. 1, which is what a command
		// ends with that could not print, is a warning to a monitor.
		switch {
		case v.Exit != checkOK && err == nil:
			return &codeError{v.Exit, errLogged{errors.New(v.Summary)}}
		case v.Exit != checkOK:
			return withCode(v.Exit, err)
		}
		return withCode(checkUnknown, err)
	}
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return withCode(checkUnknown, fmt.Errorf("rdsd check takes no arguments, but was given %q", args[0]))
		}
		return nil
	}
	cmd.PersistentPreRunE = func(cmd *cobra.Command, args []string) error { return withCode(checkUnknown, a.chooseForm(cmd, args)) }
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return withCode(checkUnknown, err) })
	cmd.Flags().StringVar(&format, "format", format, "text, nagios or json")
	cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"text", "nagios", "json"}, cobra.ShellCompDirectiveNoFileComp))
	return a.reader(cmd)
}

// check judges a status.
func check(st *rdsd.Status) checkView {
	v := checkView{Problems: st.Problems, status: st}
	switch {
	case st.Severity == "":
		v.Exit, v.Summary = checkUnknown, "this daemon does not say whether it is healthy"
		return v
	case st.Healthy:
	case st.Severity == rdsd.SeverityError:
		v.Exit = checkCritical
	default:
		v.Exit = checkWarning
	}
	v.Summary = fmt.Sprintf("%s; %d of %s up, %s", healthText(st), st.PeersUp, plural(uint64(st.Peers), "peer"), plural(uint64(st.Sockets), "socket"))
	if len(st.Problems) > 0 && !st.Healthy {
		v.Summary += ": " + about(st.Problems[0])
	}
	return v
}

func printCheck(w io.Writer, v checkView, format string) error {
	if format == "json" {
		return writeJSON(w, v)
	}
	line := fmt.Sprintf("RDSD %s - %s", v.State, plain.Text(v.Summary))
	if format == "nagios" {
		line = plugin(line)
		if v.status != nil {
			line += " | " + perfdata(v.status)
		}
	}
	fmt.Fprintln(w, line)
	for _, p := range v.Problems {
		line := fmt.Sprintf("%s: %s: %s; to do: %s", p.Severity, p.Code, about(p), p.Remedy)
		if format == "nagios" {
			line = plugin(line)
		}
		fmt.Fprintln(w, plain.Text(line))
	}
	return nil
}

// about is a problem's text, with what it is about in front: there may be many mappings
// with one path only. What is about a peer or a port names the address in its text.
func about(p rdsd.Problem) string {
	word := p.Subject[strings.LastIndexByte(p.Subject, ' ')+1:]
	_, noAddr := netip.ParseAddr(word)
	_, noPort := netip.ParseAddrPort(word)
	if named := noAddr == nil || noPort == nil; word == "" || named && strings.Contains(p.Text, word) {
		return p.Text
	}
	return p.Subject + ": " + p.Text
}

// plugin takes out of a line what divides it from performance data.
func plugin(s string) string { return strings.ReplaceAll(s, "|", "/") }

// perfdata are the numbers that a monitor draws.
func perfdata(st *rdsd.Status) string {
	counts := map[rdsd.Severity]int{}
	for _, p := range st.Problems {
		counts[p.Severity]++
	}
	return fmt.Sprintf("peers=%d;;;0 peers_up=%d;;;0;%d sockets=%d;;;0 memory=%dB;;;0;%d errors=%d;;;0 warnings=%d;;;0 uptime=%ds", st.Peers, st.PeersUp, st.Peers, st.Sockets,
		st.MemoryUsedBytes, st.MemoryBudgetBytes, counts[rdsd.SeverityError], counts[rdsd.SeverityWarning], int64(st.Uptime.Seconds()))
}
