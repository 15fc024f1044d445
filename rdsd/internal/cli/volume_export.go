package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/rdsd/rdsd/rdsd/internal/dial"
	"github.com/rdsd/rdsd/rdserr"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

type exportOptions struct {
	size, block     string
	memory, create  bool
	readOnly        bool
	shared, persist bool
	allow, sessions []string
}

func (a *app) volumeExportCmd() *cobra.Command {
	var o exportOptions
	cmd := &cobra.Command{
		Use:   "export NAME {PATH | --memory}",
		Short: "offer a file, a block device or memory to other nodes",
		Long: `Offer what is at PATH, or memory, to other nodes under NAME. --create makes a
sparse file of --size where there is none, and leaves one that is there as it is.
The daemon opens PATH, as its own user and with what its systemd unit allows.

One node writes at a time unless --shared. --allow and --allow-session say who
may open it; without them everybody may whom the daemon lets connect at all. See
docs/security.md before a daemon listens on anything but loopback. Needs root,
the daemon's user or a configured administrator.`,
		Example: `  rdsd volume export disk /srv/volumes/disk.img --create --size 20G --persist
  rdsd volume export golden /srv/volumes/golden.img --read-only --allow 10.0.0.0/24
  rdsd volume export scratch --memory --size 256M`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return usagef("NAME is missing: what other nodes call the volume")
			case len(args) > 2:
				return usagef("a NAME and a PATH are meant, but there are %d arguments: %q", len(args), args)
			}
			return nil
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return nil, cobra.ShellCompDirectiveDefault // the path
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, err := o.spec(args)
			if err != nil {
				return err
			}
			return a.volumes(cmd.Context(), func(ctx context.Context, v *rdsd.Volumes) error {
				x, err := v.Export(ctx, spec)
				if err != nil {
					return storeRights(dial.Cause(err), spec.Path)
				}
				if a.json {
					return writeJSON(a.out, x)
				}
				size := "size unknown"
				if x.Info != nil {
					size = sizeText(x.Info.Size)
				}
				say(a.out, "exported %s: %s, %s\n", x.Name, storeText(x), size)
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.memory, "memory", false, "memory of the daemon instead of a PATH; it ends with the daemon")
	f.BoolVar(&o.create, "create", false, "make the file, sparse, if there is none")
	f.StringVar(&o.size, "size", "", "of memory, or of the file to create: 4096, 512M, 20G; "+sizeHelp)
	f.BoolVar(&o.readOnly, "read-only", false, "nobody may write")
	f.BoolVar(&o.shared, "shared", false, "several nodes may write at a time; they have to agree among themselves")
	f.StringVar(&o.block, "block", "", "logical block size, 512 or 4096 (default 512, or that of the device)")
	f.StringArrayVar(&o.allow, "allow", nil, "a subnet or address that may open it; give it again for each further one (default all)")
	f.StringArrayVar(&o.sessions, "allow-session", nil, "a pattern of session names that may open it, with * and ? (default all)")
	f.BoolVar(&o.persist, "persist", false, "export it again when the daemon starts")
	flagWords(cmd, "block", []string{"512", "4096"})
	return cmd
}

// storeRights adds to the error of a store that the daemon could not open who it is that opens it: not whoever
// types the command. An error that does not name the path is of the call.
func storeRights(err error, path string) error {
	if path == "" || !strings.Contains(err.Error(), path) {
		return err
	}
	switch rdserr.Errno(err) {
	case syscall.EROFS, syscall.EACCES, syscall.EPERM:
	case syscall.ENOENT:
		if _, e := os.Stat(path); e != nil {
			return err
		}
		// It is there, and hidden from the daemon.
	default:
		return err
	}
	return fmt.Errorf("%w; the daemon opens it, with the rights of its own user and of its systemd unit: packaging/volumes.conf gives it more (docs/volumes.md, Serving)", err)
}

// storeText says what holds the bytes of an export.
func storeText(x *rdsd.Export) string {
	if x.Path == "" {
		return string(x.Kind)
	}
	return x.Path
}

func (o *exportOptions) spec(args []string) (s rdsd.ExportSpec, err error) {
	s = rdsd.ExportSpec{Name: args[0], Create: o.create, ReadOnly: o.readOnly, Shared: o.shared, AllowSessions: o.sessions, Persist: o.persist}
	switch {
	case len(args) == 1 && !o.memory:
		return s, usagef("the PATH of a file or block device is missing; or give --memory")
	case len(args) == 2 && o.memory:
		return s, usagef("either a PATH or --memory: memory has no path, but %q was given", args[1])
	case o.memory && o.create:
		return s, usagef("--create makes a file; memory needs only --size")
	case (o.memory || o.create) && o.size == "":
		return s, usagef("--size is missing: how large the volume is to be, for instance 20G")
	case !o.memory && !o.create && o.size != "":
		return s, usagef("--size goes with --create or --memory; a file that is there has its size (rdsd volume resize changes it)")
	case o.memory && o.persist:
		return s, usagef("memory ends with the daemon and cannot persist; export a file instead")
	}
	s.Kind = rdsd.KindMemory
	if !o.memory {
		s.Kind = ""
		if s.Path, err = filepath.Abs(args[1]); err != nil {
			return s, usagef("PATH %q: %v", args[1], err)
		}
	}
	if o.size != "" {
		if s.Size, err = parseSize("--size", o.size); err != nil {
			return s, err
		}
		if s.Size == 0 || s.Size%512 != 0 {
			return s, usagef("--size %s: a volume has a multiple of 512 bytes, and not none", o.size)
		}
	}
	switch o.block {
	case "":
	case "512":
		s.LogicalBlock = 512
	case "4096", "4k", "4K":
		s.LogicalBlock = 4096
	default:
		return s, usagef("--block %s: want 512 or 4096", o.block)
	}
	s.AllowAddresses, err = parsePrefixes("--allow", o.allow)
	return s, err
}

func (a *app) volumeUnexportCmd() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "unexport NAME",
		Short: "offer a volume no more",
		Long: `End an export. While other nodes have it open, or requests of those that had it are at its
store still, this is refused (exit code 5); it is done when the store is closed. With --force
their requests fail from now on, but for what the store has begun, which ends by itself and may
still write until then. The file or device stays as it is.`,
		Args:              needArgs("NAME", "an export, as rdsd volume ls shows it"),
		ValidArgsFunction: a.completeVolumeFirst(exportWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.volumes(cmd.Context(), func(ctx context.Context, v *rdsd.Volumes) error {
				if err := v.Unexport(ctx, args[0], force); err != nil {
					return err
				}
				return a.did(map[string]string{"unexported": args[0]}, "%s is exported no more", args[0])
			})
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "even while other nodes have it open")
	return cmd
}

func (a *app) volumeForceCloseCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "force-close NAME SESSION",
		Short: "take an export from one session of another node",
		Long: `Take an export from one session that has it open; the others keep it. What that
session asks of it from now on fails, and what it has at the store ends first. The
other node opens it again only when it is told to (rdsd volume remap; a kernel has
to unmap and map it). 'volume show NAME' says which sessions have it open.`,
		Example: `  rdsd volume force-close disk app-store`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usagef("the NAME of an export and a SESSION are meant, but there are %d arguments: %q", len(args), args)
			}
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return a.completeVolume(userWords(args[0]))(cmd, args, typed)
			}
			return a.completeVolumeFirst(exportWords)(cmd, args, typed)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.volumes(cmd.Context(), func(ctx context.Context, v *rdsd.Volumes) error {
				if err := v.ForceClose(ctx, args[0], args[1]); err != nil {
					return err
				}
				return a.did(map[string]string{"closed": args[0], "session": args[1]}, "%s was taken from session %s", args[0], args[1])
			})
		},
	}
}

func (a *app) volumeResizeCmd() *cobra.Command {
	var shrink bool
	cmd := &cobra.Command{
		Use:   "resize VOLUME [SIZE]",
		Short: "change the size of an export, or look what size it has now",
		Long: `Give the store of an export (a file, memory) a new size, 30G or +10G, and tell the
nodes that have it mapped. ` + sizeHelp + `.
Without SIZE, or for a block device, look what size it has now. Making it smaller
destroys what was behind; that takes --shrink.

For a mapping there is no SIZE: the size is the other node's, and is taken over.
Kernel devices change at once; NBD clients of a socket see it when they connect.

A kernel that has the export mapped is not told: its protocol has no word for it.
The command names those sessions. The device there takes the size, in sectors of
512 bytes, that is written to its attribute rnbd/resize.`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return usagef("VOLUME is missing: the name of an export, or %s", mappingMeaning)
			case len(args) > 2:
				return usagef("a VOLUME and a SIZE are meant, but there are %d arguments: %q", len(args), args)
			}
			return nil
		},
		ValidArgsFunction: a.completeVolumeFirst(exportWords, mappingWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, size := "", uint64(0)
			if len(args) == 2 {
				var err error
				text = args[1]
				if size, err = parseSize("SIZE", strings.TrimPrefix(text, "+")); err != nil {
					return err
				}
				if size == 0 {
					return usagef("SIZE %s: a volume has to have some bytes; leave it out to look what size it has", text)
				}
			}
			return a.volumes(cmd.Context(), func(ctx context.Context, v *rdsd.Volumes) error {
				return a.resize(ctx, v, args[0], size, text, shrink)
			})
		},
	}
	cmd.Flags().BoolVar(&shrink, "shrink", false, "also make it smaller, which destroys what was behind")
	return cmd
}

// resize finds out what is meant. text is what was given as SIZE, "" for nothing.
func (a *app) resize(ctx context.Context, v *rdsd.Volumes, what string, size uint64, text string, shrink bool) error {
	x, m, err := find(ctx, v, what)
	if err != nil {
		return err
	}
	var before, known, after uint64
	switch {
	case x != nil:
		if x.Info != nil {
			before = x.Info.Size
		}
		known = before
		if text != "" {
			// What the daemon remembers is from when the store was open; others may have changed it.
			if before, err = v.ResizeExport(ctx, what, 0); err != nil {
				return err
			}
		}
		more := strings.HasPrefix(text, "+")
		if more {
			size += before
		}
		if text != "" && size < before && !shrink {
			return usagef("%s has %s; with %s what is behind is destroyed, which takes --shrink", what, sizeText(before), sizeText(size))
		}
		set := v.GrowExport // it may have become larger since
		if shrink && !more {
			set = v.ResizeExport
		}
		after, err = set(ctx, what, size)
	case text != "":
		return usagef("%s is a mapping: its size is the other node's to change; leave out %q to take over the present one", what, text)
	default:
		if m.Info != nil {
			before = m.Info.Size
		}
		after, err = v.ResizeMapping(ctx, m.ID, 0)
	}
	if err != nil {
		return err
	}
	untold := []string{}
	if x != nil && after != known {
		for _, u := range x.Users {
			if u.Kernel {
				untold = append(untold, u.Session)
			}
		}
	}
	if a.json {
		return writeJSON(a.out, resized{after, before, untold})
	}
	if after == before {
		say(a.out, "%s has %s, as before\n", what, sizeText(after))
	} else {
		say(a.out, "%s has %s; before it had %s\n", what, sizeText(after), sizeText(before))
	}
	if len(untold) > 0 {
		say(a.err, "not told: %s. Kernels learn a size only when they map a volume, or by\n  echo %d > /sys/block/rnbdN/rnbd/resize\n", strings.Join(untold, ", "), after/512)
	}
	return nil
}

// resized is what resize prints with --json.
type resized struct {
	Size   uint64   `json:"size_bytes"`
	Before uint64   `json:"before_bytes"`
	Untold []string `json:"untold_sessions"` // kernels that have it open and do not know
}
