package nodeapi

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/url"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// setsPage is how many verifier sets one answer holds.
const setsPage = 64

// handOut takes the node's next task and signs its grant; nil when there is
// none, which an idle caller is not even asked for. A task that cannot be granted
// is not taken: mended is closed when it is time to look again. Nothing here waits
// for Vault.
func (a *API) handOut(ctx context.Context, c Caller, ask PollRequest) (offer *wire.TaskOffer, mended <-chan struct{}, err error) {
	if c.Idle {
		return nil, nil, nil
	}
	mended, err = a.cfg.Grants.Ready()
	if err != nil {
		a.withheld(c, err)
		return nil, mended, nil
	}
	set, err := a.cfg.Sets.NewestSet(ctx)
	if err != nil {
		a.withheld(c, err)
		return nil, nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, storeBudget)
	defer cancel()
	offer, err = a.cfg.Store.NextTask(ctx, c, ask, task.LeaseDuration)
	if err != nil || offer == nil {
		return nil, nil, err
	}
	return offer, nil, a.grant(c, ask, set, offer)
}

// withheld says that work is not handed over. The log is for the node in
// question; that it is so for all of them, whoever keeps the grants has said.
func (a *API) withheld(c Caller, err error) {
	a.cfg.Metrics.Withheld()
	a.cfg.Log.Debug("nothing is handed over", slog.String("node_id", c.NodeID), slog.Any("err", err))
}

// grant binds the offer to this poll.
func (a *API) grant(c Caller, ask PollRequest, set trust.StoredSet, o *wire.TaskOffer) error {
	digest, err := trust.EnvelopeDigest(o.Envelope)
	if err != nil {
		return err
	}
	o.Grant, o.GrantKey, err = a.cfg.Grants.Sign(task.Grant{
		V: 1, Env: a.cfg.Env, NodeID: c.NodeID, Incarnation: c.Incarnation, Nonce: ask.Nonce, ServerTime: o.ServerTime,
		TaskID: o.TaskID, EnvelopeSHA256: digest, LeaseEpoch: o.Lease.Epoch, LeaseUntil: o.Lease.ExpiresAt,
		NodeState: o.NodeState, OpSeq: o.OpSeq, SetVersion: set.Version, SetHash: set.Hash,
	})
	return err
}

// nameSet puts the newest verifier set into the answer's header, where there is
// one.
func (a *API) nameSet(ctx context.Context, w http.ResponseWriter) {
	if set, err := a.cfg.Sets.NewestSet(ctx); err == nil {
		w.Header().Set(wire.HeaderVerifierSet, trust.VerifierSetRef{Version: set.Version, Hash: set.Hash}.String())
	}
}

// verifierSets answers with the sets above a version, for a node to walk.
func (a *API) verifierSets(w http.ResponseWriter, r *http.Request) error {
	if _, err := a.authenticate(r); err != nil {
		return err
	}
	after, err := parseAfter(r.URL.Query())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), storeBudget)
	defer cancel()
	sets, err := a.cfg.Sets.SetsAfter(ctx, after, setsPage)
	if err != nil {
		return err
	}
	answer := trust.VerifierSets{Sets: make([]json.RawMessage, len(sets))}
	for i, s := range sets {
		answer.Sets[i] = s.Document
	}
	return edge.JSON(w, http.StatusOK, answer)
}

func parseAfter(q url.Values) (int64, error) {
	if len(q["after"]) > 1 {
		return 0, badQuery("bad_query", "after may be given once")
	}
	if !q.Has("after") {
		return 0, nil
	}
	after, err := parseVersion(q.Get("after"))
	if err != nil {
		return 0, badQuery("bad_after", "after must be the version of a verifier set, 0 for all")
	}
	return after, nil
}
