package bench

import (
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

// pythonWay measures datagrams between an application in Python, in the given
// mode of testdata/app.py, and one in Go on the other node.
func pythonWay(mode string) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		python, why := pythonWithRings()
		if why != "" {
			return sample{}, skip("%s", why)
		}
		w := newWorld(d)
		defer w.close()
		ds, err := w.daemons(nodeA, nodeB)
		if err != nil {
			return sample{}, err
		}
		const bytes, batch = 64, 256
		at := func(d *daemon, port uint16) string { return netip.AddrPortFrom(d.addr, port).String() }
		app := func(d *daemon, local, dst string) (*proc, error) {
			cmd := exec.Command(python, "testdata/app.py", mode, d.target, local, dst, strconv.Itoa(bytes), strconv.Itoa(batch))
			p, err := w.foreign("application in Python", cmd)
			if err != nil {
				return nil, err
			}
			return p, w.ready(p)
		}
		a := args{Bytes: bytes, Batch: batch, FrontEnd: rings, Collector: true, Senders: 1, Sockets: 1}
		if strings.HasPrefix(mode, "send") {
			a.Target, a.Local, a.Unsigned = ds[1].target, at(ds[1], 4000), true
			sink, err := w.role(roleRecv, a)
			if err != nil {
				return sample{}, err
			}
			if err := w.ready(sink); err != nil {
				return sample{}, err
			}
			if _, err := app(ds[0], at(ds[0], 0), a.Local); err != nil {
				return sample{}, err
			}
			return w.window(sink, wordCount, d)
		}
		a.Target, a.Local, a.Dst = ds[0].target, at(ds[0], 0), []string{at(ds[1], 4000)}
		sink, err := app(ds[1], a.Dst[0], "-")
		if err != nil {
			return sample{}, err
		}
		if _, err := w.role(roleSend, a); err != nil {
			return sample{}, err
		}
		return w.window(sink, wordCount, d)
	}
}

// pythonWithRings finds an interpreter that has the SDK with its extension:
// $RDSD_PYTHON, or the virtual environment that sdk/python/test.sh makes.
var pythonWithRings = sync.OnceValues(func() (path, why string) {
	if path = os.Getenv("RDSD_PYTHON"); path == "" {
		path = "../../sdk/python/.venv/bin/python"
	}
	if _, err := exec.LookPath(path); err != nil {
		return "", "no Python with the SDK: sdk/python/test.sh makes " + path + ", or set RDSD_PYTHON"
	}
	if err := exec.Command(path, "-c", "import rdsd._rings").Run(); err != nil {
		return "", "the SDK of " + path + " was built without its ring extension"
	}
	return path, ""
})
