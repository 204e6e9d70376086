package adminapi

import (
	"context"
	"net/http"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/recovery/record"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Recovery stores the policy and the decisions of health recovery.
type Recovery interface {
	// Policy returns the newest policy, the default one with version 0 if none is stored.
	Policy(ctx context.Context) (record.Policy, error)
	// PolicyWithDigest returns the newest version with the digest, also the default policy. KindNotFound
	// if there is none.
	PolicyWithDigest(ctx context.Context, digest string) (record.Policy, error)
	// ListPolicies lists the stored versions without their bodies, newest first. Page.After has the
	// version.
	ListPolicies(ctx context.Context, p Page) ([]record.Policy, []string, error)
	// ChangePolicy stores what change makes of the newest policy as a new version, with its audit row.
	// Nothing is stored if change returns an error or the same policy.
	ChangePolicy(ctx context.Context, change func(record.Policy) (recovery.Policy, error), reason string, by audit.Subject) (record.Policy, error)
	// CloseBreaker closes the breaker with its audit row, unless it is closed.
	CloseBreaker(ctx context.Context, reason string, by audit.Subject) (recovery.BreakerState, error)
	// RecoveryStatus returns what health recovery does now, without the limits of budgets.
	RecoveryStatus(ctx context.Context) (record.Status, error)
	ListDecisions(ctx context.Context, q DecisionQuery) ([]record.Decision, []string, error)
	// RecoveryFacts returns the policy, the sizes of scopes, and the attempts since a time.
	RecoveryFacts(ctx context.Context, since time.Time) (record.Facts, error)
}

// DecisionQuery selects decisions of health recovery, newest first.
type DecisionQuery struct {
	Page
	NodeID string
	Since  time.Time
}

// recoveries serves health recovery.
type recoveries struct{ base }

// recovery returns the endpoints of health recovery.
func (a *API) recovery() []Endpoint {
	const get, post, ok = http.MethodGet, http.MethodPost, http.StatusOK
	const viewer, admin = trust.RoleViewer, trust.RoleAdmin
	h := recoveries{a.base}
	return []Endpoint{
		a.on(get, "/recovery", ok, viewer, h.status),
		a.on(get, "/recovery/decisions", ok, viewer, h.decisions, schema.KindNotFound),
		a.on(get, "/recovery/facts", ok, viewer, h.facts),
		a.on(get, "/recovery/policy", ok, viewer, h.policy),
		a.on(post, "/recovery/policy", ok, admin, h.setPolicy, schema.KindDecisionOutdated),
		a.on(get, "/recovery/policies", ok, viewer, h.policies),
		a.on(post, "/recovery/arm", ok, admin, h.arm, schema.KindDecisionOutdated),
		a.on(post, "/recovery/disarm", ok, admin, h.disarm),
		a.on(post, "/recovery/breaker/close", ok, admin, h.closeBreaker),
	}
}

// status shows what health recovery does now.
func (h recoveries) status(c *call) (any, error) {
	if err := h.query(c).check(); err != nil {
		return nil, err
	}
	st, err := h.Recovery.RecoveryStatus(c.Context())
	if err != nil {
		return nil, err
	}
	p, err := st.Policy.Decode()
	st.Policy.Body = nil
	if err != nil {
		st.PolicyFault = schema.AsError(err).Message
		return st, nil
	}
	for i, b := range st.Budgets {
		if limit, limited := p.Limit(b.Size); limited {
			st.Budgets[i].Limit = &limit
		}
	}
	return st, nil
}

// decisions lists decisions, newest first.
func (h recoveries) decisions(c *call) (any, error) {
	q := h.listQuery(c)
	return page(q, "decisions", DecisionQuery{Page: q.page(2), NodeID: q.node(), Since: q.since()}, h.Recovery.ListDecisions)
}

// facts returns what a replay and the counts of outcomes need.
func (h recoveries) facts(c *call) (any, error) {
	q := h.query(c)
	since := q.since()
	if err := q.check(); err != nil {
		return nil, err
	}
	return h.Recovery.RecoveryFacts(c.Context(), since)
}

// policy shows the policy in use.
func (h recoveries) policy(c *call) (any, error) {
	if err := h.query(c).check(); err != nil {
		return nil, err
	}
	return h.Recovery.Policy(c.Context())
}

// policies lists the stored policies, newest first.
func (h recoveries) policies(c *call) (any, error) {
	q := h.listQuery(c)
	return page(q, "policies", q.page(1), h.Recovery.ListPolicies)
}

// closeBreaker closes the breaker.
func (h recoveries) closeBreaker(c *call) (any, error) {
	req, err := body(c, edge.Decode, checkRecoveryChange)
	if err != nil {
		return nil, err
	}
	return h.Recovery.CloseBreaker(c.Context(), req.Reason, c.by)
}

func checkRecoveryChange(r *record.Change) error { return checkReason(r.Reason, true) }
