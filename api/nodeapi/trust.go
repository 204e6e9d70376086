package nodeapi

import (
	"context"
	"net/http"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// nodeTrust answers with the CA bundles that stand now.
func (a *API) nodeTrust(w http.ResponseWriter, r *http.Request) error {
	if _, err := a.authenticate(r); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), storeBudget)
	defer cancel()
	servers, err := a.cfg.CAs.ServerCA(ctx)
	if err != nil {
		return err
	}
	nodes, err := a.cfg.CAs.NodeCA(ctx)
	if err != nil {
		return err
	}
	return edge.JSON(w, http.StatusOK, trust.NodeTrust{
		CABundlePEM: servers, CABundleFingerprint: trust.Fingerprint(servers),
		NodeCertCABundlePEM: nodes, NodeCertCABundleFingerprint: trust.Fingerprint(nodes),
	})
}
