package nodeapi

import (
	"io"
	"log/slog"
	"net/http"
	"strconv"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// readReference limits the client and reads the one-time reference of its request. The
// reference authenticates the caller, the TLS certificate the server.
func (a *API) readReference(w http.ResponseWriter, r *http.Request) (reference string, by audit.Subject, err error) {
	if err := a.limitRemote(w, r); err != nil {
		return "", by, err
	}
	if a.cfg.Bundles == nil {
		return "", by, schema.NewError(schema.KindNotFound, "this server issues no bundles")
	}
	var req trust.BootstrapRequest
	if err := edge.Decode(r, &req); err != nil {
		return "", by, err
	}
	return req.Reference, audit.Subject{Actor: "fetch:" + remoteHost(r), CorrelationID: edge.CorrelationID(r.Context())}, nil
}

// fetchBundle exchanges a one-time reference for its bundle. Hosts whose setup
// data is widely readable receive a reference instead of a token.
func (a *API) fetchBundle(w http.ResponseWriter, r *http.Request) error {
	reference, by, err := a.readReference(w, r)
	if err != nil {
		return err
	}
	bundle, err := a.cfg.Bundles.Fetch(r.Context(), reference, by)
	if err != nil {
		a.countRefusal(r, audit.FetchUsed, err)
		return err
	}
	edge.Annotate(r.Context(), slog.String("node_id", bundle.NodeID))
	return edge.JSON(w, http.StatusOK, bundle)
}

// fetchScript responds with the script that installs the agent on the reference's node. It
// does not spend the reference: the script does, once it has the package. So a machine whose
// response was lost may repeat the request.
func (a *API) fetchScript(w http.ResponseWriter, r *http.Request) error {
	reference, by, err := a.readReference(w, r)
	if err != nil {
		return err
	}
	nodeID, script, err := a.cfg.Bundles.Script(r.Context(), reference, by)
	if err != nil {
		a.countRefusal(r, audit.FetchUsed, err)
		return err
	}
	edge.Annotate(r.Context(), slog.String("node_id", nodeID))
	h := w.Header()
	h.Set("Content-Type", "text/x-shellscript; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(script)))
	w.WriteHeader(http.StatusOK)
	_, _ = io.WriteString(w, script) // the client has disconnected
	return nil
}
