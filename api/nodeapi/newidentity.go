package nodeapi

import (
	"net/http"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// identityTokenTTL is how long the token of task.NewIdentity is valid. The agent claims it as
// soon as the task's result is stored.
const identityTokenTTL = 15 * time.Minute

// identityToken issues the token with which the node enrolls in its next incarnation. The
// node's current identity and the lease of the signed task pay for it. Until the claim, that
// identity stays valid.
func (a *API) identityToken(w http.ResponseWriter, r *http.Request) error {
	c, taskID, err := a.callerAndTask(r)
	if err != nil {
		return err
	}
	text, id, hash := trust.NewToken()
	m := trust.MintedToken{NodeID: c.NodeID, TokenID: id, Hash: hash, Purpose: trust.PurposeReissue}
	expires, err := a.cfg.Tasks.IssueForTask(r.Context(), c, taskID, m, identityTokenTTL)
	if err != nil {
		return err
	}
	return edge.JSON(w, http.StatusOK, trust.IdentityToken{Token: text, ExpiresAt: expires})
}
