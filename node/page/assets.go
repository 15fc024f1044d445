package page

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
)

//go:embed assets
var embedded embed.FS

// An asset is a file of the page as it is sent.
type asset struct {
	body []byte
	kind string
	etag string
}

// kinds are the types of what is served; nothing else is.
var kinds = map[string]string{
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".svg":  "image/svg+xml",
	".txt":  "text/plain; charset=utf-8",
}

// assets are the files of the page by their place: "/" is the page itself.
var assets = loadAssets()

func loadAssets() map[string]asset {
	all := map[string]asset{}
	err := fs.WalkDir(embedded, "assets", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := embedded.ReadFile(name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(b)
		place := strings.TrimPrefix(name, "assets")
		if place == "/index.html" {
			place = "/"
		} else {
			place = "/assets" + place
		}
		all[place] = asset{b, kinds[path.Ext(name)], `"` + hex.EncodeToString(sum[:12]) + `"`}
		return nil
	})
	if err != nil {
		panic(err) // the files are part of the program
	}
	return all
}

func serveAsset(w http.ResponseWriter, r *http.Request) {
	a, ok := assets[r.URL.Path]
	if !ok || a.kind == "" {
		refuse(w, http.StatusNotFound, "there is nothing of that name")
		return
	}
	// A browser asks each time whether it has the newest, for the daemon may be another.
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("ETag", a.etag)
	w.Header().Set("Content-Type", a.kind)
	if r.Header.Get("If-None-Match") == a.etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(a.body)))
	_, _ = w.Write(a.body) // the client has gone away
}

func writeJSON(w http.ResponseWriter, v any) {
	b, _ := json.Marshal(v) // strings and flags
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(b, '\n')) // the client has gone away
}
