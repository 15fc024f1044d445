package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdsd/rdsd/rdsd/internal/rdstools"

	"github.com/rdsd/rdsd/internal/plain"
)

// app is what every command shares: where it reads and writes and the global
// flags. One app lives as long as one invocation.
type app struct {
	in       io.Reader
	out, err io.Writer

	socket  string        // --socket; "" means RDSD_SOCKET or the default
	timeout time.Duration // --timeout
	json    bool          // --json, or -o json
	form    string        // -o
	from    string        // --from of the commands that read; "": a daemon
}

// sameSignal is how long a further signal counts as the first.
const sameSignal = 250 * time.Millisecond

// Main runs the program with argv and returns its exit code. argv[0] chooses:
// rds-ping, rds-info and rds-stress behave like the tools of that name;
// `rdsd rds-info …` does the same without a link.
func Main(argv []string, in io.Reader, out, errw io.Writer) int {
	name, args := filepath.Base(argv[0]), argv[1:]
	if !rdstools.Has(name) && len(args) > 0 && rdstools.Has(args[0]) {
		name, args = args[0], args[1:]
	}
	if rdstools.Has(name) {
		ctx, stop := untilSignal(context.Background(), true)
		defer stop()
		printed := &keeper{w: out}
		code := rdstools.Run(ctx, name, args, printed, errw)
		if err := printed.failed(); err != nil && code == exitOK {
			fmt.Fprintf(errw, "%s: %v\n", name, err)
			code = exitFailed
		}
		return code
	}
	return run(context.Background(), args, in, out, errw)
}

// untilSignal ends ctx at SIGINT and SIGTERM and, with hangup, when the terminal is lost, so that a command gives back
// what it took. Whoever started it may have said that it outlives that, as nohup does.
func untilSignal(ctx context.Context, hangup bool) (context.Context, context.CancelFunc) {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if hangup && !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(ctx, signals...)
	// A second one ends the process, whichever of them it is and whatever the process waits for. One that
	// comes in the same moment is the same: timeout(1) sends its signal to a process and to the group of it.
	undo := context.AfterFunc(ctx, func() { time.AfterFunc(sameSignal, stop) })
	return ctx, func() { undo(); stop() }
}

func run(ctx context.Context, args []string, in io.Reader, out, errw io.Writer) int {
	printed := &keeper{w: out}
	a := &app{in: in, out: printed, err: errw}
	root := a.root()
	root.SetArgs(args)
	chosen, _, err := root.Find(args)
	serves := err == nil && chosen.CommandPath() == "rdsd serve" // which reads its file again when the terminal is lost
	ctx, stop := untilSignal(ctx, !serves)
	defer stop()
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		err = printed.failed()
	}
	if err == nil {
		return exitOK
	}
	code := exitOf(err)
	if _, own := errors.AsType[*codeError](err); code == exitInterrupted && ctx.Err() != nil && !own {
		return code // whoever has ended it knows
	}
	if _, ok := errors.AsType[errLogged](err); ok {
		return code
	}
	fmt.Fprintf(errw, "rdsd: %s\n", plain.Lines(explain(err)))
	if code == exitUsage && cmd != nil {
		fmt.Fprintf(errw, "See '%s --help'.\n", cmd.CommandPath())
	}
	return code
}

// root is the command tree.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "rdsd",
		Short: "reliable datagrams and volumes between nodes",
		Long: `rdsd is a per-node daemon for reliable, ordered datagrams (RDS) and for block
volumes between nodes, and the command line that talks to it.

'rdsd serve' runs the daemon. 'rdsd demo' shows two of them at work on this
machine. Every other command is a client of the daemon whose socket is given by
--socket, else by RDSD_SOCKET, else unix:///run/rdsd/rdsd.sock.`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		DisableAutoGenTag: true,
		PersistentPreRunE: a.chooseForm,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.Version = versionLine(buildVersion())
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetFlagErrorFunc(flagError)
	root.AddGroup(
		&cobra.Group{ID: "run", Title: "Run a daemon:"},
		&cobra.Group{ID: "data", Title: "Move datagrams:"},
		&cobra.Group{ID: "volume", Title: "Serve and map volumes:"},
		&cobra.Group{ID: "look", Title: "Look at a daemon:"},
		&cobra.Group{ID: "act", Title: "Change something:"},
	)
	f := root.PersistentFlags()
	f.StringVar(&a.socket, "socket", "", "the daemon's socket: a path or a gRPC target (default $RDSD_SOCKET, else /run/rdsd/rdsd.sock)")
	f.DurationVar(&a.timeout, "timeout", 5*time.Second, "how long to wait for the daemon or the peer; 0 waits for ever")
	f.BoolVar(&a.json, "json", false, "print JSON; streams print one object a line")
	f.StringVarP(&a.form, "output", "o", formTable, "table, json, or for commands that print one list tsv: a line of names, then tab-separated values as in JSON")
	root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{formTable, formJSON, formTSV}, cobra.ShellCompDirectiveNoFileComp))

	for _, g := range []struct {
		id   string
		cmds []*cobra.Command
	}{
		{"run", []*cobra.Command{a.serveCmd(), a.demoCmd(), a.configCmd(), a.doctorCmd()}},
		{"data", []*cobra.Command{a.sendCmd(), a.recvCmd(), a.pingCmd(), a.stressCmd()}},
		{"look", []*cobra.Command{a.statusCmd(), a.infoCmd(), a.peersCmd(), a.socketsCmd(), a.queueCmd(), a.countersCmd(), a.congestionCmd(),
			a.topCmd(), a.traceCmd(), a.errorsCmd(), a.checkCmd(), a.bugreportCmd()}},
		{"volume", []*cobra.Command{a.volumeCmd()}},
		{"act", []*cobra.Command{a.cancelCmd()}},
	} {
		for _, c := range g.cmds {
			c.GroupID = g.id
			root.AddCommand(c)
		}
	}
	root.AddCommand(a.versionCmd(), a.docsCmd(), exitCodesTopic())
	wrapArgs(root)
	return root
}

// exitCodesTopic is `rdsd help exit-codes`.
func exitCodesTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "exit-codes",
		Short: "the exit codes of every command",
		Long:  exitCodesText(),
	}
}

// wrapArgs makes errors of argument validators usage errors, and gives groups
// of subcommands a clear refusal of unknown ones.
func wrapArgs(c *cobra.Command) {
	if v := c.Args; v != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			err := v(cmd, args)
			if _, ok := errors.AsType[*codeError](err); ok {
				return err
			}
			return withCode(exitUsage, err)
		}
	} else if c.HasSubCommands() {
		c.Args = func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			msg := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
			cmd.SuggestionsMinimumDistance = 2
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				msg += fmt.Sprintf("; did you mean %q?", near[0])
			}
			return usagef("%s", msg)
		}
	} else {
		c.Args = func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && cmd.Runnable() {
				return usagef("%s takes no arguments, but was given %q", cmd.CommandPath(), args[0])
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		wrapArgs(sub)
	}
}
