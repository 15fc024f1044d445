package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/rdsd/internal/dial"
	"github.com/rdsd/rdsd/rdserr"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

type mapOptions struct {
	as, policy, access, onLoss string
	paths                      []string
	ioTimeout, lossTimeout     time.Duration
	persist, orExisting        bool
	nbdSocket, device          string
	session, id                string
	queueDepth                 uint32
	lost                       lostOptions
}

func (a *app) volumeMapCmd() *cobra.Command {
	var o mapOptions
	cmd := &cobra.Command{
		Use:   "map NODE:NAME",
		Short: "make a volume of another node a block device here",
		Long: `Map the volume NAME of NODE and print the device, alone, on standard output: with
--as socket the URI of an NBD export on a Unix socket, with --as nbd /dev/nbdN.
NODE is an address or host name, perhaps with a port (store:16388:disk,
[fd00::7]:disk).

Each --path is a path between an address of this node and one of the other's;
without one there is one path, to NODE. Paths are TCP, or with ib: before them RDMA
(ib:10.0.0.1,10.0.0.7; a kernel's ip:SRC@ip:DST and gid: are understood), and a session
may have both; ib:NODE:NAME has one path over RDMA. Requests on a path that is lost go to
another one. While there is none they wait, or, with --on-loss error, fail after
--loss-timeout.

Volumes of one node share a session, and its paths, unless --session names
another. Needs root, the daemon's user or a configured administrator.`,
		Example: `  rdsd volume map store:disk
  qemu-img info "$(rdsd volume map store:disk --access ro)"
  rdsd volume map store:disk --as nbd --path 10.0.0.1,10.0.0.7 --path 10.1.0.1,10.1.0.7 --persist
  rdsd volume map ib:store:disk
  rdsd volume map store:disk --path ib:10.0.0.1,10.0.0.7 --path tcp:10.1.0.1,10.1.0.7`,
		Args:              needArgs("NODE:NAME", "a node and the name of a volume it exports"),
		ValidArgsFunction: a.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, err := o.spec(args[0])
			if err != nil {
				return err
			}
			return a.volumes(cmd.Context(), func(ctx context.Context, v *rdsd.Volumes) error {
				m, err := v.Map(ctx, spec)
				if o.orExisting && errors.Is(err, rdserr.ErrExists) {
					writes := cmd.Flags().Changed("access") && spec.Access != rdsd.AccessReadOnly
					if m, err = existing(ctx, v, spec, writes, err); err != nil {
						return err
					}
				}
				if err != nil {
					return withHint(err, spec.Node, spec.Name)
				}
				return a.printMapped(m)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.as, "as", "", "what to make of it: socket (NBD on a Unix socket) or nbd (/dev/nbdN) (default as configured, else socket)")
	f.StringArrayVar(&o.paths, "path", nil, "a path, SRC,DST or DST, with ib: before it for RDMA; give it again for each further one")
	f.StringVar(&o.policy, "policy", "", "how requests choose among paths: "+policyList()+" (default as configured, else min-inflight)")
	f.StringVar(&o.access, "access", "rw", "ro; rw: no other writer unless the export is shared; migration: beside one other writer")
	f.DurationVar(&o.ioTimeout, "io-timeout", 0, "a request that takes longer is told of, and gives a path up that may not live (default as configured, else 30s)")
	f.DurationVar(&o.lossTimeout, "loss-timeout", 0, "with --on-loss error: how long requests wait for a path (default as configured, else 30s)")
	f.StringVar(&o.onLoss, "on-loss", "", "what requests do while no path is left: wait or error (default as configured, else wait)")
	f.BoolVar(&o.persist, "persist", false, "map it again when the daemon starts")
	f.BoolVar(&o.orExisting, "or-existing", false, "if that volume is mapped already, in that session and by that id if they are given, print the mapping and change nothing")
	f.StringVar(&o.nbdSocket, "nbd-socket", "", "with --as socket: where its socket appears (default chosen)")
	f.StringVar(&o.device, "device", "", "with --as nbd: which device, /dev/nbdN (default a free one)")
	f.StringVar(&o.session, "session", "", "name of the session to the node (default made of both nodes' names)")
	f.Uint32Var(&o.queueDepth, "queue-depth", 0, "requests of the session in flight (default what the node offers)")
	o.lost.flags(cmd)
	f.StringVar(&o.id, "id", "", "what the mapping is called (default chosen)")
	flagWords(cmd, "as", attachWords)
	flagWords(cmd, "policy", policyWords)
	flagWords(cmd, "access", accessWords)
	flagWords(cmd, "on-loss", onLossWords)
	cmd.RegisterFlagCompletionFunc("session", a.completeVolume(sessionWords))
	return cmd
}

// spec checks what can be judged here. The daemon checks the rest.
func (o *mapOptions) spec(volume string) (s rdsd.MapSpec, err error) {
	transport, volume := cutTransport(volume)
	if s.Node, s.Name, err = parseVolume("NODE:NAME", volume); err != nil {
		return s, err
	}
	if s.Attach, err = oneOf("--as", o.as, attachWords); err != nil {
		return s, err
	}
	if s.Policy, err = policyOf("--policy", o.policy); err != nil {
		return s, err
	}
	if s.Access, err = oneOf("--access", o.access, accessWords); err != nil {
		return s, err
	}
	if s.OnLoss, err = oneOf("--on-loss", o.onLoss, onLossWords); err != nil {
		return s, err
	}
	if s.Unfenced, s.UnfencedAfter, s.MaxReconnectAttempts, err = o.lost.values(); err != nil {
		return s, err
	}
	for _, p := range o.paths {
		path, err := parsePath("--path", p)
		if err != nil {
			return s, err
		}
		if path.Transport == "" {
			path.Transport = transport
		}
		s.Paths = append(s.Paths, path)
	}
	if transport != "" && len(s.Paths) == 0 {
		s.Paths = []rdsd.PathSpec{{Dst: s.Node, Transport: transport}}
	}
	switch {
	case o.lossTimeout > 0 && s.OnLoss == rdsd.OnLossWait:
		return s, usagef("--loss-timeout goes with --on-loss error; with --on-loss wait requests wait as long as it takes")
	case o.nbdSocket != "" && s.Attach == rdsd.AttachNBD:
		return s, usagef("--nbd-socket goes with --as socket; a kernel device is named by --device")
	case o.device != "" && s.Attach != rdsd.AttachNBD:
		return s, usagef("--device goes with --as nbd")
	case o.device != "" && !strings.HasPrefix(o.device, "/dev/nbd"):
		return s, usagef("--device %q: want a device of the kernel's nbd, for instance /dev/nbd3", o.device)
	case o.queueDepth > 65535:
		return s, usagef("--queue-depth %d: at most 65535 requests can be in flight", o.queueDepth)
	}
	if o.nbdSocket != "" {
		if s.SocketPath, err = filepath.Abs(o.nbdSocket); err != nil {
			return s, usagef("--nbd-socket %q: %v", o.nbdSocket, err)
		}
	}
	s.IOTimeout, s.LossTimeout, s.Persist = o.ioTimeout, o.lossTimeout, o.persist
	s.Device, s.Session, s.ID, s.QueueDepth = o.device, o.session, o.id, o.queueDepth
	return s, nil
}

// existing is the mapping that spec asks for once more. Its ID or its device may be those of another
// volume's, and the volume be mapped under another ID: then taken stands, which the daemon said.
// writes: it was asked for in words that it can be written.
func existing(ctx context.Context, v *rdsd.Volumes, spec rdsd.MapSpec, writes bool, taken error) (*rdsd.Mapping, error) {
	_, all, err := v.List(ctx)
	if err != nil {
		return nil, err
	}
	same := slices.DeleteFunc(all, func(m *rdsd.Mapping) bool {
		return m.Node != spec.Node || m.Name != spec.Name || spec.Session != "" && m.Session != spec.Session || spec.ID != "" && m.ID != spec.ID
	})
	// One that could not be taken up at the start is listed beside what was mapped since.
	if usable := slices.DeleteFunc(slices.Clone(same), func(m *rdsd.Mapping) bool { return unusable(m) != nil }); len(usable) > 0 {
		same = usable
	}
	switch {
	case len(same) == 0:
		return nil, taken
	case len(same) > 1:
		return nil, rdserr.With(rdserr.ErrExists, "%s is mapped more than once, --session or --id says which is meant", volumeText(spec.Node, spec.Name))
	case copys(same[0]) != nil:
		return nil, copys(same[0])
	case writes && same[0].Access == rdsd.AccessReadOnly:
		return nil, rdserr.With(rdserr.ErrExists, "%s is mapped already, as %s, to be read only", volumeText(spec.Node, spec.Name), same[0].ID)
	}
	return same[0], unusable(same[0])
}

// unusable says that m has nothing that programs can open. A kernel device of one that was not
// open yet is that of an earlier start of the machine, perhaps, and another's now.
func unusable(m *rdsd.Mapping) error {
	if openable(m) != "" && (m.Attach != rdsd.AttachNBD || m.State != rdsd.MappingInit) {
		return nil
	}
	why := ""
	if m.LastError != "" {
		why = ": " + m.LastError
	}
	return rdserr.With(rdserr.ErrBusy, "%s (%s) has no device yet%s", m.ID, volumeText(m.Node, m.Name), why)
}

// withHint adds to why a volume could not be opened what would be right.
func withHint(err error, node, name string) error {
	hint := ""
	switch {
	case errors.Is(err, rdserr.ErrNotFound):
		hint = fmt.Sprintf("rdsd volume ls on %s shows what it exports, rdsd volume check %s there whether that has lost its file", node, name)
	case errors.Is(err, rdserr.ErrOwned) && strings.Contains(err.Error(), "session of this name"): // of rtrs, whatever the volume
		hint = "two nodes have the same name: volumes.name gives one of them another, and --session of rdsd volume map names a session of its own"
	case errors.Is(err, rdserr.ErrOwned):
		hint = fmt.Sprintf("rdsd volume show %s on %s says who, or rdsd volume ls, if the same file is exported there by another name too; --access ro reads beside it", name, node)
	case errors.Is(err, rdserr.ErrExists):
		hint = "rdsd volume ls shows it; --or-existing takes it as it is, --session maps it once more"
	case errors.Is(err, rdserr.ErrIO) && !strings.Contains(err.Error(), "state_dir"): // else it is this node's
		hint = fmt.Sprintf("rdsd check on %s says why: its store has failed, or its volumes.state_dir cannot be written to, without which nobody new may write", node)
	case errors.Is(err, rdserr.ErrRefused), errors.Is(err, rdserr.ErrHostDown):
		hint = fmt.Sprintf("is a daemon running on %s, and does it export a volume?", node)
	default:
		return err
	}
	return fmt.Errorf("%w; %s", dial.Cause(err), hint)
}

// printMapped prints the device and, elsewhere, what is good to know of it.
func (a *app) printMapped(m *rdsd.Mapping) error {
	if a.json {
		return writeJSON(a.out, m)
	}
	size, access := "size unknown", string(m.Access)
	if m.Info != nil {
		size = sizeText(m.Info.Size)
		if m.Info.ReadOnly {
			access = string(rdsd.AccessReadOnly)
		}
	}
	say(a.err, "%s is mapped as %s: %s, %s, %d of %s\n", volumeText(m.Node, m.Name), m.ID, size, access, m.PathsUp, plural(uint64(m.PathCount), "path"))
	say(a.out, "%s\n", openable(m))
	return nil
}

// openable is what programs are given to open a mapping: the URI of a socket.
func openable(m *rdsd.Mapping) string {
	if m.URI != "" {
		return m.URI
	}
	return m.Device
}

const mappingMeaning = "a mapping: its id, its device, or NODE:NAME, as rdsd volume ls shows them"

func (a *app) volumeUnmapCmd() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "unmap MAPPING",
		Short: "take a mapped volume away",
		Long: `Unmap a volume, named by the mapping's id, its device, or NODE:NAME. While a
program is connected to its socket, or its kernel device is mounted or held by another
device (LVM, md), this is refused (exit code 5), also where the daemon may not look.
Programs that have a kernel device merely open, such as qemu or dd, are not seen: end
them before. With --force what is under way fails, and the command ends within seconds,
whatever the other node does.`,
		Args:              needArgs("MAPPING", mappingMeaning),
		ValidArgsFunction: a.completeVolumeFirst(mappingWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.volumes(cmd.Context(), func(ctx context.Context, v *rdsd.Volumes) error {
				if err := v.Unmap(ctx, mappingName(args[0]), force); err != nil {
					return err
				}
				return a.did(map[string]string{"unmapped": args[0]}, "unmapped %s", args[0])
			})
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "even while it is in use")
	return cmd
}

// mappingName is how the daemon is asked for a mapping: a URI becomes its socket.
func mappingName(s string) string {
	if socket, _, err := nbd.ParseURI(s); err == nil {
		return socket
	}
	return s
}

func (a *app) volumeRemapCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "remap MAPPING",
		Short: "open a closed mapping again, now",
		Long: `Open a mapping again that lost its volume, without waiting for the next attempt:
after the other node refused it, for instance, and the reason is gone. The device
stays the same.`,
		Args:              needArgs("MAPPING", mappingMeaning),
		ValidArgsFunction: a.completeVolumeFirst(mappingWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.volumes(cmd.Context(), func(ctx context.Context, v *rdsd.Volumes) error {
				m, err := v.Remap(ctx, mappingName(args[0]))
				if err != nil {
					return err
				}
				if a.json {
					return writeJSON(a.out, m)
				}
				say(a.out, "%s is %s\n", m.ID, m.State)
				return nil
			})
		},
	}
}
