package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/rdsd/rdsd/node"
)

type versionView struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (a *app) versionCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "show the version of this program (not of the daemon: see rdsd status)",
		RunE: func(*cobra.Command, []string) error {
			v := buildVersion()
			if a.json {
				return writeJSON(a.out, v)
			}
			_, err := fmt.Fprintln(a.out, versionLine(v))
			return err
		},
	}
}

// versionLine is what version and --version print.
func versionLine(v versionView) string {
	rev := ""
	if v.Revision != "" {
		rev = " (" + v.Revision + ")"
	}
	return fmt.Sprintf("rdsd %s%s %s %s", v.Version, rev, v.Go, v.Platform)
}

func buildVersion() versionView {
	v := versionView{Version: node.Version(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	dirty := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value[:min(12, len(s.Value))]
		case "vcs.modified":
			dirty = s.Value == "true"
		}
	}
	if dirty && v.Revision != "" {
		v.Revision += "+changes"
	}
	return v
}
