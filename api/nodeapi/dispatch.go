package nodeapi

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Dispatch is a leased task: the offer for the node, still without its grant,
// and what the server needs to sign and count it.
type Dispatch struct {
	wire.TaskOffer
	Type      task.Type
	CreatedAt time.Time
	// NodeState and OpSeq are the node's at the dispatch.
	NodeState lifecycle.NodeState
	OpSeq     int64
}

// nextDispatch leases and grants the node's next task, nil if there is none. If
// no grant can be signed, it leaves the queue untouched; changed is then closed
// when it is worth another try. It makes no call to Vault.
func (a *poller) nextDispatch(ctx context.Context, c Caller, poll wire.PollRequest) (d *Dispatch, changed <-chan struct{}, err error) {
	if c.Idle || len(poll.HeldTasks) >= wire.MaxHeldTasks {
		return nil, nil, nil
	}
	changed, err = a.cfg.Grants.Ready()
	if err != nil {
		a.withhold(c, err)
		return nil, changed, nil
	}
	set, err := a.cfg.VerifierSets.NewestSet(ctx)
	if err != nil {
		a.withhold(c, err)
		return nil, nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	d, err = a.cfg.Tasks.NextTask(ctx, c, poll, task.LeaseDuration, a.cfg.VerifierSets.AcceptedKeys())
	if err != nil || d == nil {
		return nil, nil, err
	}
	if err := a.grant(c, poll.Nonce, set, d); err != nil {
		return nil, nil, err
	}
	if d.Lease.Epoch == 1 {
		a.cfg.Metrics.Dispatched(d.ServerTime.Sub(d.CreatedAt))
	}
	return d, nil, nil
}

// withhold records that a node's poll skipped dispatch. The provider of grants
// logs the cause once for all nodes, so this line is at debug level.
func (a *poller) withhold(c Caller, err error) {
	a.cfg.Metrics.Withheld()
	a.cfg.Log.Debug("dispatch skipped", slog.String("node_id", c.NodeID), slog.Any("err", err))
}

// grant signs the lease grant that binds the offer to the poll with the nonce.
func (a *poller) grant(c Caller, nonce string, set trust.StoredSet, d *Dispatch) error {
	digest, err := trust.EnvelopeDigest(d.Envelope)
	if err != nil {
		return err
	}
	d.Grant, d.GrantKey, err = a.cfg.Grants.Sign(task.Grant{
		V: 1, Env: a.cfg.Env, NodeID: c.NodeID, Incarnation: c.Incarnation, Nonce: nonce, ServerTime: d.ServerTime,
		TaskID: d.TaskID, EnvelopeSHA256: digest, LeaseEpoch: d.Lease.Epoch, LeaseUntil: d.Lease.ExpiresAt,
		NodeState: d.NodeState, OpSeq: d.OpSeq, SetVersion: set.Version, SetHash: set.Hash,
	})
	return err
}

// setVerifierSetHeader names the newest verifier set in the response, if there
// is one, and the newest checkpoint of the audit trail.
func (a *poller) setVerifierSetHeader(ctx context.Context, w http.ResponseWriter) {
	a.setCheckpointHeader(w)
	if set, err := a.cfg.VerifierSets.NewestSet(ctx); err == nil {
		w.Header().Set(wire.HeaderVerifierSet, trust.VerifierSetRef{Version: set.Version, Hash: set.Hash}.String())
	}
}
