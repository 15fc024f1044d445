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

	stopSignals func() // gives SIGINT and SIGTERM their default effect back
}

// Main runs the program with argv and returns its exit code. argv[0] chooses:
// rds-ping, rds-info and rds-stress behave like the tools of that name;
// `rdsd rds-info …` does the same without a link.
func Main(argv []string, in io.Reader, out, errw io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	name, args := filepath.Base(argv[0]), argv[1:]
	if !rdstools.Has(name) && len(args) > 0 && rdstools.Has(args[0]) {
		name, args = args[0], args[1:]
	}
	if rdstools.Has(name) {
		return rdstools.Run(ctx, name, args, out, errw)
	}
	return run(ctx, stop, args, in, out, errw)
}

func run(ctx context.Context, stopSignals func(), args []string, in io.Reader, out, errw io.Writer) int {
	printed := &keeper{w: out}
	a := &app{in: in, out: printed, err: errw, stopSignals: stopSignals}
	root := a.root()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		err = printed.failed()
	}
	if err == nil {
		return exitOK
	}
	code := exitOf(err)
	if code == exitInterrupted && ctx.Err() != nil {
		return code
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
