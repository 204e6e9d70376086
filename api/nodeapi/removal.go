package nodeapi

import (
	"context"
	"encoding/base64"
	"log/slog"
	"net/http"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// proveRemoval makes a handler send the signed removal of the path's node with the error
// node_removed. An agent deletes its identity on nothing less, so the error stays without
// a document while there is none, or while it cannot be read.
func (a *API) proveRemoval(h edge.Handler) edge.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		err := h(w, r)
		if err == nil || schema.AsError(err).Reason != schema.ReasonNodeRemoved {
			return err
		}
		ctx, cancel := context.WithTimeout(r.Context(), storeTimeout)
		defer cancel()
		document, readErr := a.cfg.Identities.Removal(ctx, r.PathValue("node_id"))
		if readErr != nil {
			edge.Annotate(r.Context(), slog.Any("removal_err", readErr))
		}
		if len(document) > 0 {
			w.Header().Set(wire.HeaderRemoval, base64.RawURLEncoding.EncodeToString(document))
		}
		return err
	}
}
