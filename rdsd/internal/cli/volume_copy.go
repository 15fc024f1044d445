package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/rdsd/internal/dial"
	"github.com/rdsd/rdsd/rdsd/internal/image"
	"github.com/rdsd/rdsd/rdserr"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// copyView is what --json prints at the end.
type copyView struct {
	From     string     `json:"from"`
	To       string     `json:"to"`
	Bytes    bytesCount `json:"bytes"`
	Data     bytesCount `json:"data_bytes"`
	Zeroes   bytesCount `json:"zero_bytes"`
	Verified bool       `json:"verified"`
	Elapsed  duration   `json:"elapsed_ns"`
}

type copyOptions struct {
	verify, force bool
	paths         []string
}

func (a *app) volumeCopyCmd() *cobra.Command {
	var o copyOptions
	cmd := &cobra.Command{
		Use:   "copy SRC DST",
		Short: "copy an image file to a volume, a volume to a file, or a volume to a volume",
		Long: `Copy SRC to the beginning of DST and flush it. Each of them is

  NODE:NAME   a volume of another node; if it is not mapped already, it is for as
              long as the copy takes
  a mapping   its id, the path of its socket, or an nbd+unix: URI
  a file      or a block device; file:PATH where PATH could be mistaken

At least one is a volume. Holes and zeroes of SRC become holes of DST where it can
have them. What a DST has behind the end of SRC stays as it is; a DST that is too
small is refused before anything is written. A file that exists is overwritten
with --force only.

On a terminal a bar shows how far it has come; with --json a line a second does.
With --verify both are read again and compared (exit code 7 if they differ).`,
		Example: `  rdsd volume copy debian.img store:disk --verify
  rdsd volume copy store:disk backup.img
  rdsd volume copy store1:disk store2:disk`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usagef("a SRC and a DST are meant, but there are %d arguments: %q", len(args), args)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.copyVolume(cmd.Context(), args[0], args[1], o)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.verify, "verify", false, "read both again and compare")
	f.BoolVar(&o.force, "force", false, "overwrite a file that exists")
	f.StringArrayVar(&o.paths, "path", nil, "for a NODE:NAME that is not mapped: a path, SRC,DST or DST, instead of one to NODE; not for two of them on different nodes")
	return cmd
}

// operand is SRC or DST of a copy.
type operand struct {
	arg    string
	file   string // path, of a device too; "": it is a volume, to be mapped or connected to
	mapped bool   // file is the device of a mapping
	absent bool   // it is a volume that nothing usable is mapped of
	unused error  // why not the mapping there is
	at     string // where it is: the device or the URI of the mapping there is, or the path of a file
	volume image.Volume
	source *image.File
	target *image.File
	unmap  func(force bool)
}

func (x *operand) isVolume() bool { return x.file == "" || x.mapped }

func (a *app) copyVolume(ctx context.Context, from, to string, o copyOptions) (err error) {
	// By itself the signal ends a process, with what it mapped left mapped. That nobody reads what is said is no end of a copy.
	signal.Ignore(syscall.SIGPIPE)
	src, dst := &operand{arg: from}, &operand{arg: to}
	defer func() { dst.close(err != nil); src.close(err != nil) }() // what a copy that failed has under way is not waited for
	if err := a.openOperands(ctx, src, dst, o); err != nil {
		return err
	}
	if err := image.Fits(dst.to(), src.from()); err != nil {
		if dst.target != nil {
			dst.target.Discard()
		}
		return fmt.Errorf("%s is not copied to %s: %w", from, to, err) // which is as it was
	}
	// What is under way ends with the command, whatever the other node does.
	defer context.AfterFunc(ctx, func() { src.interrupt(); dst.interrupt() })()
	meter, start := new(image.Meter), time.Now()
	bar := a.showProgress(meter, src.from().Size())
	err = image.Copy(ctx, dst.to(), src.from(), meter)
	copied := err == nil
	if copied && o.verify {
		err = image.Compare(ctx, dst.to(), src.from(), meter)
	}
	bar.stop()
	if err != nil {
		return copyError(ctx, src, dst, copied, err)
	}
	if dst.target != nil {
		if err := dst.target.Close(); err != nil {
			return fmt.Errorf("%s: %w", to, err)
		}
		dst.target = nil
	}
	v := copyView{from, to, bytesCount(src.from().Size()), bytesCount(meter.Data.Load()), bytesCount(meter.Zero.Load()), o.verify, duration(time.Since(start))}
	if a.json {
		return writeNDJSON(a.out, v)
	}
	verified := ""
	if o.verify {
		verified = ", compared"
	}
	say(a.out, "copied %s to %s: %s, %s of it data%s, in %s\n", from, to, sizeText(uint64(v.Bytes)), v.Data, verified, v.Elapsed)
	return nil
}

// copyError says what a copy that failed leaves behind. One that was copied and not compared is whole, and stays.
func copyError(ctx context.Context, src, dst *operand, copied bool, err error) error {
	if copied {
		_, differs := errors.AsType[*image.Different](err)
		switch {
		case differs:
			return withCode(exitIncomplete, fmt.Errorf("%s was copied to %s, but %w", src.arg, dst.arg, err))
		case ctx.Err() != nil:
			return withCode(exitInterrupted, fmt.Errorf("%s was copied to %s; comparing them was interrupted", src.arg, dst.arg))
		}
		return fmt.Errorf("%s was copied to %s; comparing them: %w", src.arg, dst.arg, err)
	}
	left := dst.arg + " has a part of it"
	if dst.target != nil && dst.target.Discard() {
		left = dst.arg + " was removed"
	}
	if ctx.Err() != nil {
		return withCode(exitInterrupted, fmt.Errorf("the copy was interrupted; %s", left))
	}
	return fmt.Errorf("copying %s to %s: %w; %s", src.arg, dst.arg, err, left)
}

// openOperands opens both, mapping volumes that are not mapped. What can be refused without that is: a mapping
// for writing keeps other nodes out.
func (a *app) openOperands(ctx context.Context, src, dst *operand, o copyOptions) error {
	var paths []rdsd.PathSpec
	for _, p := range o.paths {
		path, err := parsePath("--path", p)
		if err != nil {
			return err
		}
		paths = append(paths, path)
	}
	for _, x := range []*operand{src, dst} {
		if err := a.resolve(ctx, x); err != nil {
			return err
		}
	}
	if !src.isVolume() && !dst.isVolume() {
		return usagef("neither %s nor %s is a volume (NODE:NAME, or a mapping that rdsd volume ls shows); cp copies files", src.arg, dst.arg)
	}
	from, read, _ := parseVolume("volume", src.arg)
	to, written, _ := parseVolume("volume", dst.arg)
	if src.at != "" && src.at == dst.at || src.absent && dst.absent && from == to && read == written {
		// Who writes it meanwhile would have older blocks over newer ones.
		return usagef("%s and %s are the same volume", src.arg, dst.arg)
	}
	if len(paths) > 0 && src.absent && dst.absent {
		// Both would be looked for at its end, and a volume of the other name, or the source itself, be written.
		if from != to {
			return usagef("--path cannot lead to both %s and %s; map one of them first (rdsd volume map)", src.arg, dst.arg)
		}
	}
	if src.file != "" {
		f, err := image.Open(src.file)
		if err != nil {
			return fileError("SRC", src.file, err)
		}
		src.source = f
	}
	for _, x := range []*operand{src, dst} {
		if !x.absent {
			continue
		}
		access := rdsd.AccessReadOnly
		if x == dst {
			access = rdsd.AccessReadWrite
		}
		err := a.volumes(ctx, func(ctx context.Context, v *rdsd.Volumes) error { return a.mapFor(ctx, v, x, access, paths) })
		if x.unused != nil && errors.Is(err, rdserr.ErrExists) {
			err = x.unused
		}
		if err != nil {
			return err
		}
	}
	if dst.file != "" {
		f, err := image.Create(dst.file, src.from().Size(), o.force)
		if err != nil {
			return fileError("DST", dst.file, err)
		}
		dst.target = f
	}
	if dst.file == "" && dst.volume.Info().ReadOnly {
		return withCode(exitDenied, fmt.Errorf("%s is read-only", dst.arg))
	}
	return nil
}

func fileError(what, path string, err error) error {
	if _, ok := errors.AsType[*fs.PathError](err); ok && errors.Is(err, fs.ErrNotExist) && what == "SRC" && !strings.Contains(path, "/") {
		return rdserr.With(rdserr.ErrNotFound, "SRC %s is neither a file nor a mapping that rdsd volume ls shows", path)
	}
	return err
}

// resolve finds out what an operand is, and connects to a volume that is mapped.
func (a *app) resolve(ctx context.Context, x *operand) error {
	if path, ok := strings.CutPrefix(x.arg, "file:"); ok || x.arg == "" {
		if path == "" {
			return usagef("%q names no file", x.arg)
		}
		x.file, x.at = path, path
		return nil
	}
	if strings.HasPrefix(x.arg, "nbd+unix:") {
		if _, _, err := nbd.ParseURI(x.arg); err != nil {
			return withCode(exitUsage, err)
		}
		return x.connect(ctx, x.arg)
	}
	head, _, _ := strings.Cut(x.arg, "/")
	remote := strings.Contains(head, ":")
	st, err := os.Stat(x.arg)
	if !remote && (strings.Contains(x.arg, "/") || err == nil) && (err != nil || st.Mode().Type() != fs.ModeSocket) {
		x.file, x.at = x.arg, x.arg
		return nil
	}
	if remote {
		if _, _, err := parseVolume("volume", x.arg); err != nil {
			return err
		}
	}
	// A mapping, or NODE:NAME, mapped or not.
	return a.volumesStream(ctx, func(ctx context.Context, v *rdsd.Volumes) error {
		bounded, cancel := a.bounded(ctx)
		defer cancel()
		m, err := v.Mapping(bounded, x.arg)
		switch {
		case err == nil && copys(m) != nil:
			return copys(m)
		case err == nil && remote && unusable(m) != nil:
			// One that was not taken up does not stand in the way of another.
			x.absent, x.unused = true, unusable(m)
			return nil
		case err == nil && unusable(m) != nil:
			return unusable(m)
		case err == nil && m.Attach == rdsd.AttachNBD:
			x.file, x.at, x.mapped = m.Device, m.Device, true
			return nil
		case err == nil:
			return x.connect(bounded, m.URI)
		case !errors.Is(err, rdserr.ErrNotFound):
			return err
		case !remote:
			x.file = x.arg // a file to be made
			return nil
		}
		x.absent = true
		return nil
	})
}

// copyID is what a copy calls a mapping that it makes, by which others know it (copys).
func copyID() string { return fmt.Sprintf("copy-x%08x", rand.Uint32()) }

var copysID = regexp.MustCompile(`^copy-x[0-9a-f]{8}$`)

// copys refuses a mapping that a copy has made: it goes when that ends, under whoever else uses it.
func copys(m *rdsd.Mapping) error {
	if !copysID.MatchString(m.ID) {
		return nil
	}
	return rdserr.With(rdserr.ErrBusy, "a copy is using %s, mapped as %s (after one that was killed: rdsd volume unmap %s)", volumeText(m.Node, m.Name), m.ID, m.ID)
}

// mapFor maps a volume for as long as the command runs.
func (a *app) mapFor(ctx context.Context, v *rdsd.Volumes, x *operand, access rdsd.VolumeAccess, paths []rdsd.PathSpec) error {
	node, name, err := parseVolume("volume", x.arg)
	if err != nil {
		return err
	}
	m, err := v.Map(ctx, rdsd.MapSpec{Node: node, Name: name, ID: copyID(), Attach: rdsd.AttachSocket, Access: access, Paths: paths})
	if errors.Is(err, rdserr.ErrExists) {
		if other, e := v.Mapping(ctx, x.arg); e == nil && copys(other) != nil { // which was faster
			return copys(other)
		}
	}
	if err != nil {
		return fmt.Errorf("mapping %s: %w", x.arg, dial.Cause(withHint(err, node, name)))
	}
	x.unmap = func(force bool) {
		// Also after Ctrl-C, and by a connection of its own.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cmp.Or(a.timeout, 5*time.Second))
		defer cancel()
		err := a.volumesStream(ctx, func(ctx context.Context, v *rdsd.Volumes) error {
			for {
				err := v.Unmap(ctx, m.ID, force)
				if force || !errors.Is(err, rdserr.ErrBusy) {
					return err
				}
				select { // it may not have seen yet that the copy's own connection is closed
				case <-time.After(50 * time.Millisecond):
				case <-ctx.Done():
					return err
				}
			}
		})
		stays := fmt.Sprintf("%s stays mapped as %s: ", x.arg, m.ID)
		if err != nil && a.isGone(ctx, m.ID) { // and what is to be told is that this was not written down
			stays = ""
		}
		if err != nil {
			say(a.err, "rdsd: %s%v\n", stays, err)
		}
	}
	return x.connect(ctx, m.URI)
}

// isGone tells whether the daemon says that it has no such mapping.
func (a *app) isGone(ctx context.Context, id string) bool {
	err := a.volumesStream(ctx, func(ctx context.Context, v *rdsd.Volumes) error {
		_, err := v.Mapping(ctx, id)
		return err
	})
	return errors.Is(err, rdserr.ErrNotFound)
}

func (x *operand) connect(ctx context.Context, uri string) error {
	c, err := nbd.DialURI(ctx, uri)
	if err != nil {
		return fmt.Errorf("%s: %w", x.arg, err)
	}
	x.volume = image.Volume{Client: c}
	if socket, name, err := nbd.ParseURI(uri); err == nil { // it may be written in several ways
		x.at = nbd.URI(socket, name)
	}
	return nil
}

func (x *operand) from() image.Source {
	if x.source != nil {
		return x.source
	}
	return x.volume
}

func (x *operand) to() image.Target {
	if x.target != nil {
		return x.target
	}
	return x.volume
}

func (x *operand) interrupt() {
	if x.volume.Client != nil {
		x.volume.Close()
	}
}

// close ends what the copy has of x. Without force a mapping that others use meanwhile stays.
func (x *operand) close(force bool) {
	x.interrupt()
	if x.source != nil {
		x.source.Close()
	}
	if x.target != nil {
		x.target.Close()
	}
	if x.unmap != nil {
		x.unmap(force)
	}
}
