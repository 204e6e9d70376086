package console

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"net/http"
	"strings"
)

// assets are the static files. Their URLs contain a digest of the files, so that browsers keep
// them until they change.
type assets struct {
	files   map[string][]byte
	version string
}

func readAssets() (*assets, error) {
	a := &assets{files: map[string][]byte{}}
	sum := sha256.New()
	err := fs.WalkDir(staticFiles, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := staticFiles.ReadFile(name)
		a.files[strings.TrimPrefix(name, "static/")] = content
		sum.Write(content)
		return err
	})
	a.version = hex.EncodeToString(sum.Sum(nil)[:6])
	return a, err
}

func (a *assets) url(name string) string { return Prefix + "/static/" + a.version + "/" + name }

func (a *assets) serve(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("file")
	content, ok := a.files[name]
	if !ok {
		http.NotFound(w, r)
		return nil
	}
	types := map[string]string{"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
	_, extension, _ := strings.Cut(name, ".")
	w.Header().Set("Content-Type", types[extension])
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	_, _ = w.Write(content) // the client is gone
	return nil
}
