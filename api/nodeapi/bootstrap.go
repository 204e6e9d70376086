package nodeapi

import (
	"log/slog"
	"net/http"
	"os"
	"strconv"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Package is an agent package for hosts that are being installed, or the binary of a release.
type Package struct {
	// Path is the archive file, or the binary.
	Path string
	Size int64
}

// fetchBundle exchanges a one-time reference for its bundle. Hosts whose setup
// data is widely readable receive a reference instead of a token. The reference
// authenticates the caller, the TLS certificate the server.
func (a *API) fetchBundle(w http.ResponseWriter, r *http.Request) error {
	if err := a.limitRemote(w, r); err != nil {
		return err
	}
	if a.cfg.Bundles == nil {
		return schema.NewError(schema.KindNotFound, "this server issues no bundles")
	}
	var req trust.BootstrapRequest
	if err := edge.Decode(w, r, &req); err != nil {
		return err
	}
	bundle, err := a.cfg.Bundles.Fetch(r.Context(), req.Reference,
		audit.Subject{Actor: "fetch:" + remoteHost(r), CorrelationID: edge.CorrelationID(r.Context())})
	if err != nil {
		a.countRefusal(r, audit.FetchUsed, err)
		return err
	}
	edge.Annotate(r.Context(), slog.String("node_id", bundle.NodeID))
	return edge.JSON(w, http.StatusOK, bundle)
}

// servePackage sends an archive or a binary. It contains no secret, and the caller
// verifies its digest.
func (a *API) servePackage(w http.ResponseWriter, r *http.Request) error {
	if err := a.limitRemote(w, r); err != nil {
		return err
	}
	p, ok := a.cfg.Packages[r.PathValue("digest")]
	if !ok && a.cfg.Release != nil {
		p, ok = a.cfg.Release(r.PathValue("digest"))
	}
	if !ok {
		return schema.NewError(schema.KindNotFound, "no package with this digest")
	}
	end := a.downloads.begin(limitKey(remoteHost(r)), a.ofNode(r))
	if end == nil {
		a.cfg.Metrics.Limited("downloads")
		return rateLimited(w, downloadRetry, "downloads")
	}
	defer end()
	f, err := os.Open(p.Path)
	if err != nil {
		return schema.Wrap(schema.KindServiceUnavailable, err, "reading the package")
	}
	defer func() { _ = f.Close() }() // read-only
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.FormatInt(p.Size, 10))
	w.WriteHeader(http.StatusOK)
	if err := send(w, f, p.Size, blockTimeout); err != nil {
		panic(http.ErrAbortHandler) // cuts the connection; the caller checks the digest
	}
	return nil
}
