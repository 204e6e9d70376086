package nodeapi

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// setsPage is the maximum number of verifier sets in one response.
const setsPage = 64

// nodeTrust responds with the current CA bundles.
func (a *API) nodeTrust(w http.ResponseWriter, r *http.Request) error {
	if _, err := a.authenticate(r); err != nil {
		return err
	}
	servers, err := a.cfg.CAs.ServerCA(r.Context())
	if err != nil {
		return err
	}
	nodes, err := a.cfg.CAs.NodeCA(r.Context())
	if err != nil {
		return err
	}
	return edge.JSON(w, http.StatusOK, trust.NodeTrust{
		CABundlePEM: servers, CABundleFingerprint: trust.Fingerprint(servers),
		NodeCertCABundlePEM: nodes, NodeCertCABundleFingerprint: trust.Fingerprint(nodes),
	})
}

// verifierSets responds with the verifier sets above a version, in order.
func (a *API) verifierSets(w http.ResponseWriter, r *http.Request) error {
	if _, err := a.authenticate(r); err != nil {
		return err
	}
	after, err := parseAfter(r.URL.Query())
	if err != nil {
		return err
	}
	sets, err := a.cfg.VerifierSets.SetsAfter(r.Context(), after, setsPage)
	if err != nil {
		return err
	}
	response := trust.VerifierSets{Sets: make([]json.RawMessage, len(sets))}
	for i, s := range sets {
		response.Sets[i] = s.Document
	}
	return edge.JSON(w, http.StatusOK, response)
}

// parseAfter reads the optional query parameter after: a version in canonical
// decimal form.
func parseAfter(q url.Values) (int64, error) {
	if len(q["after"]) > 1 {
		return 0, invalidRequest("bad_query", "after must not be repeated")
	}
	if !q.Has("after") {
		return 0, nil
	}
	after, err := strconv.ParseInt(q.Get("after"), 10, 64)
	if err != nil || after < 0 || strconv.FormatInt(after, 10) != q.Get("after") {
		return 0, invalidRequest("bad_after", "after must be the version of a verifier set, 0 for all")
	}
	return after, nil
}

func invalidRequest(reason, format string, args ...any) error {
	return schema.NewError(schema.KindInvalidRequest, format, args...).WithReason(reason)
}
