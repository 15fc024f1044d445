package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdsd/rdsd/node"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdsd/internal/dial"

	"github.com/rdsd/rdsd/internal/plain"
)

func (a *app) configCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "show and check the configuration",
	}
	cmd.AddCommand(a.configShowCmd(), a.configCheckCmd())
	return cmd
}

// configFlags adds the flags of serve that make a configuration to cmd.
func configFlags(cmd *cobra.Command, load *config.LoadOptions) {
	f := cmd.Flags()
	f.StringVar(&load.File, "config", "", "configuration file, TOML (RDSD_CONFIG)")
	load.Flags = config.Flags()
	for _, v := range load.Flags {
		p := f.VarPF(v, v.Name(), "", v.Usage())
		if v.IsBoolFlag() {
			p.NoOptDefVal = "true"
		}
	}
}

func (a *app) configShowCmd() *cobra.Command {
	var load config.LoadOptions
	var origin, running bool
	cmd := &cobra.Command{
		Use:   "show",
		Short: "print the configuration that serve would have, or that the daemon has",
		Long: `Print the configuration that 'rdsd serve' would have with the same file, variables
and flags, as a file that loads again. --origin says on each line where its value
came from: default, a line of the file, a variable, a flag. --running asks the daemon for the one it
has, reloads taken in, always with the origins; --from prints that of the daemon whose
archive it is. No key of it is a secret.`,
		Example: `  rdsd config show
  rdsd config show --origin --config /etc/rdsd/rdsd.toml
  rdsd config show --running`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if running || a.from != "" { // an archive has that of its daemon
				// The flag of serve has taken the name of the one that says which daemon is asked.
				if f := cmd.Flags().Lookup("socket"); f.Changed {
					a.socket = f.Value.String()
				}
				return a.read(cmd.Context(), func(ctx context.Context, c source) error {
					text, err := c.Config(ctx)
					if err == nil {
						err = a.printConfig(text)
					}
					return err
				})
			}
			load.Env = a.shellEnv()
			c, err := config.Load(load)
			if err != nil {
				return withCode(exitConfig, configErrors(err))
			}
			var b strings.Builder
			if origin {
				err = c.DumpOrigins(&b)
			} else {
				err = c.Dump(&b)
			}
			if err != nil {
				return err
			}
			return a.printConfig(b.String())
		},
	}
	configFlags(cmd, &load)
	cmd.Flags().BoolVar(&origin, "origin", false, "say on each line where its value came from")
	cmd.Flags().BoolVar(&running, "running", false, "of the daemon, as it is now")
	return a.reader(cmd)
}

func (a *app) printConfig(text string) error {
	if a.json {
		return writeJSON(a.out, map[string]string{"toml": text})
	}
	_, err := fmt.Fprint(a.out, plain.Lines(text))
	return err
}

func (a *app) configCheckCmd() *cobra.Command {
	var load config.LoadOptions
	cmd := &cobra.Command{
		Use:   "check",
		Short: "name every mistake of the configuration; the same as serve --check",
		Long: `Check the configuration that 'rdsd serve' would have with the same file, variables and
flags, and name every mistake in it; then the exit code is 78. With --json the mistakes
are on standard output too.`,
		Example: `  rdsd config check
  rdsd config check --config /etc/rdsd/rdsd.toml --json`,
		RunE: func(*cobra.Command, []string) error {
			load.Env = a.shellEnv()
			return a.checkConfig(load)
		},
	}
	configFlags(cmd, &load)
	return cmd
}

// daemonEnv is this environment as a daemon takes it: RDSD_SOCKET, which is for clients too
// and has more forms there, is a path. What is no Unix socket stays, and is refused.
func daemonEnv() []string {
	env := os.Environ()
	if path := dial.Socket(os.Getenv("RDSD_SOCKET")); path != "" {
		if abs, err := filepath.Abs(path); err == nil && path[0] != '@' {
			path = abs
		}
		env = append(env, "RDSD_SOCKET="+path) // the last one counts
	}
	return env
}

// shellEnv is daemonEnv for a look at what a daemon here would have. Of that an RDSD_SOCKET
// of another machine says nothing.
func (a *app) shellEnv() []string {
	env := daemonEnv()
	target, set := os.LookupEnv("RDSD_SOCKET")
	if !set || dial.Socket(target) != "" {
		return env
	}
	if target != "" {
		fmt.Fprintf(a.err, "rdsd: RDSD_SOCKET is no socket of this machine and is ignored: %s\n", plain.Text(target))
	}
	return slices.DeleteFunc(env, func(v string) bool { return strings.HasPrefix(v, "RDSD_SOCKET=") })
}

// checkConfig says whether a daemon would start with a configuration.
func (a *app) checkConfig(load config.LoadOptions) error {
	_, wrong := goodConfig(load)
	err := withCode(exitConfig, configErrors(wrong))
	switch {
	case a.json:
		verdict := struct {
			Good   bool     `json:"good"`
			Errors []string `json:"errors"`
		}{wrong == nil, mistakes(wrong)}
		if printed := writeJSON(a.out, verdict); err == nil {
			err = printed
		}
	case err == nil:
		_, err = fmt.Fprintln(a.out, "the configuration is good")
	}
	return err
}

// checkedConfig is a configuration that a daemon would start with.
func checkedConfig(load config.LoadOptions) (*config.Config, error) {
	c, err := goodConfig(load)
	return c, withCode(exitConfig, configErrors(err))
}

// goodConfig is checkedConfig with the errors as they are found.
func goodConfig(load config.LoadOptions) (*config.Config, error) {
	c, err := config.Load(load)
	if err == nil {
		err = node.CheckSystem(c)
	}
	return c, err
}
