package cli

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdsd/internal/dial"
	"github.com/rdsd/rdsd/rdsd/internal/doctor"

	"github.com/rdsd/rdsd/internal/plain"
)

func (a *app) doctorCmd() *cobra.Command {
	var load config.LoadOptions
	var peers []string
	cmd := &cobra.Command{
		Use:   "doctor [" + strings.Join(doctor.Groups, "|") + "]...",
		Short: "say what this machine lacks for rdsd, and the command that mends it",
		Long: `Look at this machine, and ask no daemon: limits, memory of the control group, room for
state, addresses, ports, kernel modules, permissions. Limits, control group and state are
those of the daemon that runs, as far as this user may see them, and of this shell
where none does. Each finding is ok, a note (it
works, but not as it could), a warning or an error, with the command that mends it.
It changes nothing. The configuration is that of 'rdsd serve' with the same file and
variables, and the daemon the one whose socket that names, unless --socket names another;
where it is wrong the exit code is 78. Without arguments it looks at everything:

  limits  file descriptors, memory of the control group, room on disks
  net     addresses and their MTU, whether packets as large as that get to the peers
          that the configuration names one by one, and to those of --peer, TCP ports
          16385 and 16388, congestion control, socket buffers, the daemon's socket
  nbd     the kernel's nbd module and its netlink, for volumes as kernel devices
  rdma    devices, modules and locked memory

The exit code is 1 if there is an error. The daemon's own problems are in
'rdsd status', those of volumes in 'rdsd volume check'.`,
		Example: `  rdsd doctor
  rdsd doctor net limits
  rdsd doctor net --peer 127.0.0.3`,
		ValidArgs: doctor.Groups,
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, g := range args {
				if !slices.Contains(doctor.Groups, g) {
					return usagef("%q: want %s, or nothing for all", g, strings.Join(doctor.Groups, ", "))
				}
			}
			var addrs []netip.Addr
			for _, p := range peers {
				addr, err := netip.ParseAddr(p)
				if err != nil {
					return usagef("--peer %q is no address", p)
				}
				addrs = append(addrs, addr.Unmap())
			}
			load.Env = a.shellEnv()
			found, err := a.doctor(load, args, addrs)
			if err != nil { // what is said of the defaults is not what that daemon needs
				return withCode(exitConfig, configErrors(err))
			}
			if err := printList(a, found, doctorColumns, "nothing was looked at"); err != nil {
				return err
			}
			errs := uint64(0)
			for _, f := range found {
				if f.Severity == doctor.Error {
					errs++
				}
				if !a.json && a.form == formTable && f.Remedy != "" {
					fmt.Fprintf(a.out, "to do, %s: %s\n", plain.Text(f.What), plain.Text(f.Remedy))
				}
			}
			if errs > 0 {
				return withCode(exitFailed, fmt.Errorf("the doctor found %s", plural(errs, "error")))
			}
			return nil
		},
	}
	cmd.Args = cobra.ArbitraryArgs
	cmd.Flags().StringSliceVar(&peers, "peer", nil, "look at the way to this node too; may be repeated")
	cmd.Flags().StringVar(&load.File, "config", "", "look for what this configuration needs (RDSD_CONFIG)")
	return aList(cmd)
}

var doctorColumns = []column[doctor.Finding]{
	{"severity", func(f doctor.Finding) any { return f.Severity }},
	{"group", func(f doctor.Finding) any { return f.Group }},
	{"what", func(f doctor.Finding) any { return f.What }},
	{"finding", func(f doctor.Finding) any { return f.Text }},
}

// doctor looks at the machine for a daemon with a configuration.
func (a *app) doctor(load config.LoadOptions, groups []string, peers []netip.Addr) ([]doctor.Finding, error) {
	c, err := config.Load(load)
	if err != nil {
		return nil, err
	}
	// As of 'rdsd serve': the flag goes over the variable, and that over the file. A flag that names a daemon of
	// another machine says nothing of this one.
	if socket := dial.Socket(a.socket); a.socket != "" && socket != "" {
		c.API.Socket = socket
	}
	return doctor.Examine(doctor.Here(), c, c.API.Socket, groups, peers), nil
}
