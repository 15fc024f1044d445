package cli

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdsd/rdsd/internal/plain"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdsd/internal/dial"
	"github.com/rdsd/rdsd/rdsd/internal/doctor"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

func (a *app) bugreportCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bugreport [FILE]",
		Short: "put all that a daemon knows of itself into an archive",
		Long: `Write an archive (tar.gz, JSON inside) of all that the daemon knows of itself: status
and problems, peers, sockets, what is queued, counters, congestion, volumes, the
errors of its log, its configuration, its metrics, what rdsd doctor says of the
machine, and, with http.pprof, its goroutines. Commands that read accept it with
--from FILE, as if they asked the daemon at that moment.

No payload is in it, no content of volumes, and no key; addresses, ports, users,
labels of sockets and names of volumes are: look at it before you give it away.
FILE is rdsd-DATE.tar.gz if it is not given, and is not overwritten.`,
		Example: `  rdsd bugreport
  rdsd bugreport /tmp/rdsd.tar.gz
  rdsd status --from /tmp/rdsd.tar.gz`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			now := time.Now()
			name := now.Format("rdsd-20060102-150405.tar.gz")
			if len(args) == 1 {
				name = args[0]
			}
			f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if errors.Is(err, os.ErrExist) {
				return withCode(exitExists, err)
			} else if err != nil && len(args) == 0 {
				return fmt.Errorf("%w; name a file that can be written: rdsd bugreport %s", err, filepath.Join(os.TempDir(), name))
			} else if err != nil {
				return err
			}
			meta, err := a.writeReport(cmd.Context(), f, now)
			if err := errors.Join(err, f.Close()); err != nil {
				os.Remove(name)
				return err
			}
			if a.json {
				return writeJSON(a.out, struct {
					File    string            `json:"file"`
					Missing map[string]string `json:"missing"`
				}{name, meta.Missing})
			}
			fmt.Fprintf(a.out, "wrote %s; no payload and no key is in it, names and addresses are\n", name)
			for _, file := range slices.Sorted(maps.Keys(meta.Missing)) {
				fmt.Fprintf(a.out, "without %s: %s\n", file, plain.Text(meta.Missing[file]))
			}
			return nil
		},
	}
	return cmd
}

// writeReport asks the daemon for everything and writes it down.
func (a *app) writeReport(ctx context.Context, out io.Writer, now time.Time) (*reportMeta, error) {
	z := gzip.NewWriter(out)
	w := &archive{t: tar.NewWriter(z), meta: reportMeta{Version: reportVersion, Time: now.UTC(), Program: versionLine(buildVersion()), Missing: map[string]string{}}}
	err := a.read(ctx, func(ctx context.Context, c source) error {
		st, err := c.Status(ctx)
		if err != nil {
			return err // no daemon: there is nothing to report of
		}
		if err := w.add("status.json", st, nil); err != nil {
			return err
		}
		if err := w.lists(ctx, c); err != nil {
			return err
		}
		metrics, err := a.page(ctx, st.HTTPAddress, "/metrics")
		if err := w.add("metrics.txt", metrics, err); err != nil {
			return err
		}
		stacks, err := a.page(ctx, st.HTTPAddress, "/debug/pprof/goroutine?debug=1")
		return w.add("goroutines.txt", stacks, err)
	})
	if err == nil {
		err = ctx.Err() // interrupted: what is missing then is not what the daemon did not have
	}
	if err != nil {
		return nil, err
	}
	var found []doctor.Finding
	if w.config == "" {
		err = errors.New("there is no configuration to look for what it needs")
	} else {
		found, err = a.doctor(config.LoadOptions{File: "config.json", Text: []byte(w.config)}, nil, nil)
	}
	if err := w.add("doctor.json", found, err); err != nil {
		return nil, err
	}
	if err := w.add("meta.json", w.meta, nil); err != nil {
		return nil, err
	}
	return &w.meta, errors.Join(w.t.Close(), z.Close())
}

// lists asks for the lists.
func (w *archive) lists(ctx context.Context, c source) error {
	peers, err := c.Peers(ctx, rdsd.PeerFilter{})
	if err := w.add("peers.json", peers, err); err != nil {
		return err
	}
	sockets, err := c.Sockets(ctx)
	if err := w.add("sockets.json", sockets, err); err != nil {
		return err
	}
	var q queueView
	q.Queue, q.Truncated, err = c.Queue(ctx, rdsd.QueueAll, 0)
	if err := w.add("queue.json", q, err); err != nil {
		return err
	}
	counters, err := c.Counters(ctx, netip.Addr{})
	if err := w.add("counters.json", counters, err); err != nil {
		return err
	}
	congestion, leftOut, err := c.Congestion(ctx)
	w.meta.CongestionLeftOut = leftOut
	if err := w.add("congestion.json", congestion, err); err != nil {
		return err
	}
	history, err := c.CongestionHistory(ctx, netip.AddrPort{})
	if err := w.add("history.json", history, err); err != nil {
		return err
	}
	log, err := c.Errors(ctx)
	if err := w.add("errors.json", log, err); err != nil {
		return err
	}
	w.config, err = c.Config(ctx)
	if err := w.add("config.json", map[string]string{"toml": w.config}, err); err != nil {
		return err
	}
	volumes, err := c.Volumes(ctx)
	if err := w.add("volumes.json", volumes, err); err != nil {
		return err
	}
	sessions, err := c.VolumeSessions(ctx)
	if err := w.add("sessions.json", sessions, err); err != nil {
		return err
	}
	paths, err := c.VolumePaths(ctx)
	return w.add("paths.json", paths, err)
}

// maxPage bounds what is taken from the page for monitoring.
const maxPage = 64 << 20

// page fetches a path of the daemon's page, if the daemon is on this machine.
func (a *app) page(ctx context.Context, address, path string) ([]byte, error) {
	switch {
	case address == "":
		return nil, errors.New("http.listen is off")
	case dial.Socket(dial.Target(a.socket)) == "":
		return nil, errors.New("the daemon is on another machine")
	}
	t := &http.Transport{DisableKeepAlives: true}
	if sock, ok := strings.CutPrefix(address, "unix:"); ok {
		address = "localhost"
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", sock)
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Transport: t}).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", path, resp.Status)
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxPage+1))
	if err == nil && len(b) > maxPage {
		err = fmt.Errorf("%s is larger than %s", path, bytesCount(maxPage))
	}
	return b, err
}
