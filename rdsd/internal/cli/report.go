package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdsd/rdsd/rdserr"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// reportVersion is the form of an archive of bugreport.
const reportVersion = 1

// maxReportFile bounds a file of an archive that is read: it may come from anywhere.
const maxReportFile = 256 << 20

// reportMeta is meta.json of an archive.
type reportMeta struct {
	Version int               `json:"version"`
	Time    time.Time         `json:"time"`
	Program string            `json:"program"` // the version of rdsd that made it
	Missing map[string]string `json:"missing"` // what could not be had, and why

	// CongestionLeftOut is about how many congested ports are not in congestion.json.
	CongestionLeftOut int `json:"congestion_left_out,omitempty"`
}

// queueView is queue.json.
type queueView struct {
	Queue     []rdsd.QueuedDatagram `json:"queue"`
	Truncated bool                  `json:"truncated"`
}

// report is an archive that was read: a source of what a daemon said once.
type report struct {
	name  string
	files map[string][]byte
	meta  reportMeta
}

// openReport reads an archive of bugreport.
func openReport(name string) (*report, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, withCode(exitMissing, err)
	} else if err != nil {
		return nil, err
	}
	defer f.Close()
	r := &report{name: name, files: map[string][]byte{}}
	wrong := func(err error) error {
		return usagef("--from %s is no archive of rdsd bugreport: %v", name, err)
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, wrong(err)
	}
	left := int64(maxReportFile)
	for t := tar.NewReader(z); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, wrong(err)
		}
		b, err := io.ReadAll(io.LimitReader(t, left+1))
		if left -= int64(len(b)); err == nil && left < 0 {
			err = fmt.Errorf("it holds more than %s", bytesCount(maxReportFile))
		}
		if err != nil {
			return nil, wrong(err)
		}
		r.files[h.Name] = b
	}
	if err := r.load("meta.json", &r.meta); err != nil {
		return nil, wrong(err)
	}
	if r.meta.Version != reportVersion {
		return nil, wrong(fmt.Errorf("its version is %d, and this rdsd knows %d", r.meta.Version, reportVersion))
	}
	return r, nil
}

// load reads one of the files.
func (r *report) load(file string, v any) error {
	b, ok := r.files[file]
	if !ok {
		why := r.meta.Missing[file]
		if why == "" {
			why = "it has no such file"
		}
		return rdserr.With(rdserr.ErrNotFound, "%s has no %s: %s", r.name, file, why)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %s: %w", r.name, file, err)
	}
	return nil
}

// loaded reads one of the files as a T.
func loaded[T any](r *report, file string) (v T, err error) {
	err = r.load(file, &v)
	return v, err
}

// Now implements source.
func (r *report) Now() time.Time { return r.meta.Time }

// Status implements source.
func (r *report) Status(context.Context) (*rdsd.Status, error) {
	return loaded[*rdsd.Status](r, "status.json")
}

// Peers implements source.
func (r *report) Peers(_ context.Context, f rdsd.PeerFilter) ([]rdsd.Peer, error) {
	list, err := loaded[[]rdsd.Peer](r, "peers.json")
	return slices.DeleteFunc(list, func(p rdsd.Peer) bool {
		return f.Local.IsValid() && p.Local != f.Local || f.Remote.IsValid() && p.Remote != f.Remote
	}), err
}

// Sockets implements source.
func (r *report) Sockets(context.Context) ([]rdsd.SocketInfo, error) {
	return loaded[[]rdsd.SocketInfo](r, "sockets.json")
}

// Queue implements source.
func (r *report) Queue(_ context.Context, kind rdsd.QueueKind, limit uint32) (list []rdsd.QueuedDatagram, truncated bool, err error) {
	v, err := loaded[queueView](r, "queue.json")
	list = slices.DeleteFunc(v.Queue, func(q rdsd.QueuedDatagram) bool { return kind != rdsd.QueueAll && q.Queue != kind })
	if most := int(limit); most > 0 && len(list) > most {
		return list[:most], true, err
	}
	return list, v.Truncated, err
}

// Counters implements source. An archive has those of the daemon as a whole.
func (r *report) Counters(_ context.Context, peer netip.Addr) ([]rdsd.Counter, error) {
	if peer.IsValid() {
		return nil, usagef("an archive has the counters of the daemon as a whole, not those of a peer")
	}
	return loaded[[]rdsd.Counter](r, "counters.json")
}

// Congestion implements source.
func (r *report) Congestion(context.Context) (list []rdsd.CongestedPort, leftOut int, err error) {
	list, err = loaded[[]rdsd.CongestedPort](r, "congestion.json")
	return list, r.meta.CongestionLeftOut, err
}

// CongestionHistory implements source.
func (r *report) CongestionHistory(_ context.Context, port netip.AddrPort) (*rdsd.CongestionHistory, error) {
	v, err := loaded[*rdsd.CongestionHistory](r, "history.json")
	if err == nil && port.IsValid() {
		v.Ports = slices.DeleteFunc(v.Ports, func(p rdsd.PortHistory) bool { return p.Endpoint != port })
	}
	return v, err
}

// Errors implements source.
func (r *report) Errors(context.Context) (*rdsd.ErrorLog, error) {
	return loaded[*rdsd.ErrorLog](r, "errors.json")
}

// Config implements source.
func (r *report) Config(context.Context) (string, error) {
	v, err := loaded[map[string]string](r, "config.json")
	return v["toml"], err
}

// Volumes implements source.
func (r *report) Volumes(context.Context) (*volumesView, error) {
	return loaded[*volumesView](r, "volumes.json")
}

// VolumeSessions implements source.
func (r *report) VolumeSessions(context.Context) ([]rdsd.VolumeSession, error) {
	return loaded[[]rdsd.VolumeSession](r, "sessions.json")
}

// VolumePaths implements source.
func (r *report) VolumePaths(context.Context) ([]rdsd.VolumePath, error) {
	return loaded[[]rdsd.VolumePath](r, "paths.json")
}

// reader adds --from to a command that only reads.
func (a *app) reader(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringVar(&a.from, "from", "", "read an archive of rdsd bugreport instead of asking a daemon")
	cmd.MarkFlagFilename("from", "tar.gz", "tgz")
	return cmd
}

// noWatch refuses to watch an archive.
func (a *app) noWatch() error {
	if a.from != "" {
		return usagef("an archive does not change: --watch and --from do not go together")
	}
	if a.form == formTSV {
		return usagef("--watch prints no list: -o table or -o json")
	}
	return nil
}

// archive is an archive being made.
type archive struct {
	t      *tar.Writer
	meta   reportMeta
	config string // of the daemon; "": it was not told
}

// add puts a file in, or notes why it is not there.
func (w *archive) add(name string, v any, err error) error {
	if err != nil {
		w.meta.Missing[name] = strings.ReplaceAll(explain(err), "\n", " ")
		return nil
	}
	b, ok := v.([]byte)
	if !ok {
		var buf bytes.Buffer
		if err := writeJSON(&buf, v); err != nil {
			return err
		}
		b = buf.Bytes()
	}
	if err := w.t.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(b)), ModTime: w.meta.Time}); err != nil {
		return err
	}
	_, err = w.t.Write(b)
	return err
}
