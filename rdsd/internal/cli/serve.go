package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdsd/rdsd/node"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdsd/internal/doctor"
)

func (a *app) serveCmd() *cobra.Command {
	var file string
	var check bool
	flags := config.Flags()
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "run the daemon",
		Long: `Run the daemon until SIGTERM or Ctrl-C, then drain: what is in flight is
delivered, within --drain-timeout. A second signal ends it at once.

Without any configuration it serves 127.0.0.1 only. Settings come from the
defaults, then the file, then RDSD_* variables, then flags; a later one wins. A
wrong setting is named with its line, its key and what would be right, and the
exit code is 78. SIGHUP has the file read again: what can change while the daemon
runs does, the rest is named in the log; a wrong file changes nothing.`,
		Example: `  rdsd serve
  rdsd serve --address 10.0.0.1 --address fd00::1
  rdsd serve --config /etc/rdsd/rdsd.toml --check`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			hangups := make(chan os.Signal, 1)
			if !check { // from the first moment: by itself each of these ends a process
				signal.Notify(hangups, syscall.SIGHUP)
				signal.Ignore(syscall.SIGPIPE) // whoever read the log has ended
				ownFiles()
			}
			load := config.LoadOptions{File: file, Env: daemonEnv(), Flags: flags}
			if check {
				return a.checkConfig(load)
			}
			cfg, err := checkedConfig(load)
			if err != nil {
				return err
			}
			return a.serve(cmd.Context(), cfg, load, hangups)
		},
	}
	f := cmd.Flags()
	f.StringVar(&file, "config", "", "configuration file, TOML (RDSD_CONFIG)")
	f.BoolVar(&check, "check", false, "check the configuration and exit")
	for _, v := range flags {
		p := f.VarPF(v, v.Name(), "", v.Usage())
		if v.IsBoolFlag() {
			p.NoOptDefVal = "true"
		}
	}
	return cmd
}

// ownFiles sees to it that this process can use what it makes: with a mask that takes from the owner, too, the state's
// directory would be of mode 0, and stay so for later starts.
func ownFiles() {
	mask := syscall.Umask(0o077)
	syscall.Umask(mask &^ 0o700)
}

// configErrors writes several wrong settings one a line.
func configErrors(err error) error {
	if err == nil {
		return nil
	}
	if list := mistakes(err); len(list) > 1 {
		return fmt.Errorf("the configuration has %d errors:\n  %s", len(list), strings.Join(list, "\n  "))
	}
	return fmt.Errorf("wrong configuration: %w", err)
}

// mistakes are what is wrong with a configuration, one by one.
func mistakes(err error) []string {
	list := []string{}
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range j.Unwrap() {
			list = append(list, e.Error())
		}
	} else if err != nil {
		list = append(list, err.Error())
	}
	return list
}

// serve runs a node until ctx ends. The first signal has ended ctx; a second one ends the process.
//
// What ends it is a line of its log, for that is what a daemon's standard error is;
// the exit code is 78 for the configuration and 1 for the rest.
func (a *app) serve(ctx context.Context, cfg *config.Config, load config.LoadOptions, hangups <-chan os.Signal) error {
	out := node.NewLogWriter(a.err)
	defer out.Flush(time.Second)
	log := node.NewLogger(out, &cfg.Log)
	n, err := node.New(cfg, log)
	if err != nil {
		return withCode(exitConfig, err)
	}
	n.LogsTo(out)
	node.TuneMemory(cfg)
	if group, needs, found := doctor.ShortGroup(doctor.Here(), cfg); found {
		then := "end the daemon"
		if group.Slows {
			then = "slow the daemon down"
		}
		log.Warn("the control group allows less memory than limits.memory_bytes and 64 MiB: the kernel may "+then, "group", group.Path, "allowed", group.Most, "needed", needs)
	}
	over := make(chan struct{})
	defer close(over)
	go func() { // ends with the node, and nobody waits for it: the file may be on a disk that stands still
		for {
			select {
			case <-hangups:
				n.ReloadFrom(load)
			case <-over:
				return
			}
		}
	}()
	err = n.Run(ctx)
	if err == nil {
		return nil
	}
	code := exitFailed
	if _, ok := errors.AsType[*config.Error](err); ok {
		code = exitConfig
	}
	log.Error("the daemon ends", "error", err, "exit_code", code)
	return &codeError{code, errLogged{err}}
}

// errLogged is an error whose text the log has.
type errLogged struct{ error }
