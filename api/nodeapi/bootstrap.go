package nodeapi

import (
	"log/slog"
	"net/http"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
)

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
