package nodeapi

import (
	"io"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
)

// packageTime bounds a package's download over a slow line.
const packageTime = 15 * time.Minute

// Package is an agent package that is served to hosts under installation.
type Package struct {
	// Path is the archive's file.
	Path string
	Size int64
}

// fetch spends a one-time reference and answers with the bundle it stands for,
// for hosts that were set up with data many can read. The caller's proof is the
// reference; the server has proved itself by its certificate.
func (a *API) fetch(w http.ResponseWriter, r *http.Request) error {
	if wait, ok := a.remotes.take(host(r.RemoteAddr)); !ok {
		return a.overLimit(w, wait, "remote")
	}
	if a.cfg.Bundles == nil {
		return schema.Errorf(schema.KindNotFound, "no bundles are handed out here")
	}
	bundle, err := a.cfg.Bundles.Fetch(r.Context(), r.PathValue("reference"),
		audit.Subject{Actor: "fetch:" + host(r.RemoteAddr), CorrelationID: edge.CorrelationID(r.Context())})
	if err != nil {
		return err
	}
	edge.Annotate(r.Context(), slog.String("node_id", bundle.NodeID))
	return edge.JSON(w, http.StatusOK, bundle)
}

// servePackage sends an archive. It holds no secret: the digest is what makes it
// trusted.
func (a *API) servePackage(w http.ResponseWriter, r *http.Request) error {
	if wait, ok := a.remotes.take(host(r.RemoteAddr)); !ok {
		return a.overLimit(w, wait, "remote")
	}
	p, ok := a.cfg.Packages[r.PathValue("digest")]
	if !ok {
		return schema.Errorf(schema.KindNotFound, "no package of this digest")
	}
	f, err := os.Open(p.Path)
	if err != nil {
		return schema.Wrap(schema.KindServiceUnavailable, err, "the package cannot be read")
	}
	defer func() { _ = f.Close() }() // it was only read
	h := w.Header()
	h.Set("Content-Type", "application/gzip")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.FormatInt(p.Size, 10))
	w.WriteHeader(http.StatusOK)
	if _, err := io.Copy(w, io.LimitReader(f, p.Size)); err != nil {
		panic(http.ErrAbortHandler) // cut short; the digest would tell anyway
	}
	return nil
}
