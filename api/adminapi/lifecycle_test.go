package adminapi_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/instance"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	machines "github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const token = "admin-token-0123456789"

// backend is the store, the workflows and the trust of one node.
type backend struct {
	adminapi.Nodes // for what no test asks
	adminapi.Operations
	adminapi.Trail

	mu         sync.Mutex
	asked      any // the query of the last list
	next       []string
	status     lifecycle.OperationStatus
	resolved   []lifecycle.ResolveRequest
	resolvedOn string
	resolveErr error
	runFaults  []wire.ControlPlaneFault
	runEnd     lifecycle.RunEnd // how the last run of an operation ended
	runErr     error
	noted      []lifecycle.ResolveRequest
	noteErr    error
	change     wire.NodeChange
	changes    []adminapi.Change
	tokens     string                 // the tokens file
	auth       adminapi.Authenticator // instead of the tokens, if not nil

	node      wire.NodeView
	steps     []string // in the order they were made
	submitted lifecycle.OperationInput
	minted    trust.MintedToken
	expiry    time.Time // of tokens, by the database's clock
	by        audit.Subject

	trustErr, submitErr, issueErr, fetchErr error
	registerErr                             error
	open                                    []wire.OperationSummary
	pack                                    *trust.AgentPackage
	url, ca                                 string
	over                                    bool // the operation ended before its bundle
	started                                 map[string]lifecycle.Operation
	meantime                                bool // another request starts the operation before Submit
	signed                                  string
	releaseErr                              error
	unsigned                                []string // architectures without a release

	task      wire.TaskView
	providers []machines.Provider
	instance  instance.View
	listed    []any // what TaskList was asked for
	decided   []any // what was decided, and by whom
	decision  error
}

func (d *backend) Register(_ context.Context, id string, r wire.RegisterNodeRequest, _ audit.Subject) (wire.NodeView, error) {
	if d.registerErr != nil {
		return wire.NodeView{}, d.registerErr
	}
	d.node = wire.NodeView{ID: id, Host: r.Host, Port: r.Port, SKU: r.SKU, GPUsTotal: max(r.GPUsTotal, 8), RegionCode: r.RegionCode,
		OnboardingMode: r.OnboardingMode, LifecycleClass: r.LifecycleClass, Labels: r.Labels}
	return d.node, nil
}

func (d *backend) Changes(_ context.Context, after adminapi.Position, limit int) (page []adminapi.Change, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.changes {
		if later := c.At.Compare(after.At); len(page) < limit && (later > 0 || later == 0 && c.Seq > after.Seq) {
			page = append(page, c)
		}
	}
	return page, nil
}

func (d *backend) Node(_ context.Context, name string) (wire.NodeView, error) {
	if schema.IsID(name) && name != d.node.ID {
		return wire.NodeView{}, schema.NewError(schema.KindNotFound, "no node %q", name)
	}
	return d.node, nil
}

func (d *backend) TokenExpiry(context.Context) (time.Time, error) { return d.expiry, nil }

func (d *backend) IssueToken(_ context.Context, m trust.MintedToken, by audit.Subject) error {
	d.steps = append(d.steps, "issue")
	d.minted, d.by = m, by
	return d.issueErr
}

func (d *backend) IssueFetch(_ context.Context, m trust.MintedToken, by audit.Subject) error {
	d.steps = append(d.steps, "reference")
	d.minted, d.by = m, by
	return d.issueErr
}

func (d *backend) UseFetch(context.Context, string, []byte, audit.Subject) (string, trust.TokenPurpose, error) {
	d.steps = append(d.steps, "spend")
	return d.node.ID, d.minted.Purpose, d.fetchErr
}

func (d *backend) CheckFetch(context.Context, string, []byte, audit.Subject) (string, time.Time, error) {
	d.steps = append(d.steps, "check")
	return d.node.ID, d.minted.ExpiresAt, d.fetchErr
}

func (d *backend) ListOperations(_ context.Context, q adminapi.OperationQuery) ([]wire.OperationSummary, []string, error) {
	d.asked = q
	return d.open, nil, nil
}

func (d *backend) ListNodes(_ context.Context, q adminapi.NodeQuery) ([]wire.NodeView, []string, error) {
	d.asked = q
	return []wire.NodeView{d.node}, d.next, nil
}

func (d *backend) ListAudit(_ context.Context, q adminapi.AuditQuery) ([]audit.Row, []string, error) {
	d.asked = q
	return nil, d.next, nil
}

func (d *backend) ListTasks(_ context.Context, q adminapi.TaskQuery) ([]wire.TaskView, []string, error) {
	d.listed = []any{q.NodeID, q.Open}
	if d.task.TaskID == "" {
		return nil, nil, nil
	}
	return []wire.TaskView{d.task}, nil, nil
}

func (d *backend) Operation(_ context.Context, id string) (lifecycle.OperationStatus, error) {
	if op, ok := d.started[id]; ok {
		return lifecycle.OperationStatus{Operation: op}, nil
	}
	if id != d.status.Operation.OperationID {
		return lifecycle.OperationStatus{}, schema.NewError(schema.KindNotFound, "no operation %q", id)
	}
	return d.status, nil
}

func (d *backend) Resolve(_ context.Context, workflowID string, r lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
	if d.resolveErr != nil {
		return lifecycle.OperationStatus{}, d.resolveErr
	}
	d.resolved, d.resolvedOn = append(d.resolved, r), workflowID
	return d.status, nil
}

func (d *backend) Resolved(_ context.Context, _, _ string, r lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
	for _, first := range d.resolved {
		if first.ID == r.ID {
			return d.status, nil
		}
	}
	return lifecycle.OperationStatus{}, schema.NewError(schema.KindNotFound, "no such decision")
}

func (d *backend) RunEnds(_ context.Context, ops []lifecycle.Operation) (ends []lifecycle.RunEnd, errs []error) {
	for range ops {
		ends, errs = append(ends, d.runEnd), append(errs, d.runErr)
	}
	return ends, errs
}

func (d *backend) RunFaults(context.Context, lifecycle.Operation) ([]wire.ControlPlaneFault, error) {
	return d.runFaults, d.runErr
}

func (d *backend) NoteStored(_ context.Context, r lifecycle.ResolveRequest, _ string) error {
	d.noted = append(d.noted, r)
	return d.noteErr
}

func (d *backend) SetNode(_ context.Context, _ string, c wire.NodeChange, by audit.Subject) (wire.NodeView, error) {
	d.change, d.by = c, by
	return d.node, nil
}

func (d *backend) Task(_ context.Context, id string) (wire.TaskView, error) {
	if id != d.task.TaskID {
		return wire.TaskView{}, schema.NewError(schema.KindNotFound, "no task %q", id)
	}
	return d.task, nil
}

func (d *backend) ResumeTask(_ context.Context, id, reason string, by audit.Subject) (wire.TaskView, error) {
	d.decided = []any{"resume", id, reason, by}
	return d.task, d.decision
}

func (d *backend) CancelTask(_ context.Context, id, reason string, by audit.Subject) (wire.TaskView, error) {
	d.decided = []any{"cancel", id, reason, by}
	return d.task, d.decision
}

func (d *backend) Submit(_ context.Context, in lifecycle.OperationInput) (lifecycle.Operation, error) {
	d.steps = append(d.steps, "submit")
	d.submitted = in
	if !d.over {
		d.open = append(d.open, wire.OperationSummary{OperationID: in.OperationID, Action: in.Action})
	}
	op := lifecycle.Operation{OperationID: in.OperationID, Action: in.Action, Status: lifecycle.OperationAccepted, Reason: in.Reason, Options: in.Options}
	if _, again := d.started[in.OperationID]; again || d.meantime {
		d.started[in.OperationID] = op
		return lifecycle.Operation{}, schema.NewError(schema.KindInvalidRequest, "in use by another run").WithReason("duplicate_operation")
	}
	if d.submitErr == nil {
		d.started[in.OperationID] = op
	}
	return op, d.submitErr
}

func (d *backend) ServerCA(context.Context) (string, error) {
	d.steps = append(d.steps, "trust")
	return d.ca, d.trustErr
}

func (d *backend) NodeCA(context.Context) (string, error) { return d.ca, nil }

func (d *backend) TaskTrust(context.Context) (trust.TaskTrust, error) {
	return trust.TaskTrust{Keys: trust.VerifierKeys{{State: trust.KeyActive, KeyID: "k", Public: make([]byte, 32)}}}, nil
}

func (d *backend) api() *adminapi.API {
	tokens, err := adminapi.NewTokens(sha256.Sum256([]byte(token)), "ops", d.tokens)
	if err != nil {
		panic(err)
	}
	if d.auth == nil {
		d.auth = tokens
	}
	return adminapi.New(adminapi.Config{Env: "test", NodeURL: d.url, Auth: d.auth,
		Package: func() (*trust.AgentPackage, error) { return d.pack, nil },
		Nodes:   d, SKUs: d, Machines: d, Signals: d, Templates: d, EnrollmentTokens: d, Operations: d, Tasks: d, Trail: d, Lifecycle: d, Rehydrator: d, Trust: d, Log: slog.New(slog.DiscardHandler), Ready: func() error { return nil },
		Release: d.release})
}

// release signs versions for all architectures but those in unsigned.
func (d *backend) release(version, arch string) (string, error) {
	if d.releaseErr != nil {
		return "", d.releaseErr
	}
	if slices.Contains(d.unsigned, arch) {
		return "", schema.NewError(schema.KindNotFound, "no release %s for %s", version, arch)
	}
	if arch == trust.ArchARM64 {
		version += " arm64"
	}
	return version + d.signed, nil
}

// exchange exchanges references.
func (d *backend) exchange() adminapi.Bundles {
	return adminapi.NewBundles(adminapi.Config{Env: "test", NodeURL: d.url, Nodes: d, EnrollmentTokens: d, Trust: d,
		Package: func() (*trust.AgentPackage, error) { return d.pack, nil }})
}

func (d *backend) post(t *testing.T, verb, body string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	h := d.api().Handler()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/v1/admin/nodes/gpu-1/"+verb, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set(wire.HeaderCorrelationID, "c-1")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func newBackend() *backend {
	return &backend{expiry: time.Now().Add(trust.TokenTTL).UTC().Truncate(time.Second), url: "https://api.internal", ca: "PEM", started: map[string]lifecycle.Operation{}, node: wire.NodeView{ID: "0190b6c2-1111-7aaa-8bbb-0123456789ab", Host: "gpu-1", RegionCode: "r1", OnboardingMode: "manual"}}
}

func TestOperationInput(t *testing.T) {
	d := newBackend()
	w := d.post(t, "drain", `{"reason":"RMA-4411","options":{"drain_timeout_seconds":60}}`, wire.HeaderIdempotencyKey, "k")
	require.Equal(t, http.StatusAccepted, w.Code, w.Body.String())
	assert.Equal(t, lifecycle.OperationInput{
		OperationID: lifecycle.OperationID(d.node.ID, lifecycle.ActionDrain, "ops", "k"), NodeID: d.node.ID, Action: lifecycle.ActionDrain,
		Actor: "ops", Via: "api", Reason: "RMA-4411", CorrelationID: "c-1", Host: "gpu-1", Provider: "manual", Region: "r1",
		Options: lifecycle.Options{DrainTimeoutSeconds: 60},
	}, d.submitted)
	assert.Equal(t, []string{"submit"}, d.steps)
	assert.NotContains(t, w.Body.String(), "bootstrap_bundle")

	d.node.Instance = &lifecycle.Instance{Provider: "libvirt"}
	d.post(t, "reactivate", "")
	assert.Equal(t, "libvirt", d.submitted.Provider)
	assert.True(t, schema.IsID(d.submitted.OperationID))
}

// The order that keeps a failure harmless: trust is read before anything
// changes, the operation is accepted before a token is made.
func TestEnrollOrder(t *testing.T) {
	d := newBackend()
	w := d.post(t, "enroll", "")
	require.Equal(t, http.StatusAccepted, w.Code, w.Body.String())
	assert.Equal(t, []string{"trust", "submit", "issue"}, d.steps)
	var answer wire.LifecycleResponse
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
	id, hash, err := trust.ParseToken(answer.BootstrapBundle.EnrollmentToken)
	require.NoError(t, err)
	assert.Equal(t, id, d.minted.TokenID)
	assert.Equal(t, hash, d.minted.Hash)
	assert.Equal(t, trust.PurposeEnroll, d.minted.Purpose)
	assert.WithinDuration(t, time.Now().Add(trust.TokenTTL), d.minted.ExpiresAt, time.Minute)
	assert.Equal(t, d.minted.ExpiresAt.Format(time.RFC3339), answer.BootstrapBundle.ExpiresAt)
	assert.Equal(t, audit.Subject{Actor: "ops", Via: "api", CorrelationID: "c-1"}, d.by)
	assert.Equal(t, "no-store", w.Header().Get("Cache-Control"))

	unavailable := schema.NewError(schema.KindServiceUnavailable, "no answer")
	for name, c := range map[string]struct {
		spoil func(*backend)
		steps []string
		code  int
	}{
		"Vault unavailable":    {func(d *backend) { d.trustErr = unavailable }, []string{"trust"}, http.StatusServiceUnavailable},
		"Temporal unavailable": {func(d *backend) { d.submitErr = unavailable }, []string{"trust", "submit"}, http.StatusServiceUnavailable},
		"database unavailable": {func(d *backend) { d.issueErr = unavailable }, []string{"trust", "submit", "issue"}, http.StatusServiceUnavailable},
		"operation ended":      {func(d *backend) { d.over = true }, []string{"trust", "submit"}, http.StatusBadRequest},
	} {
		d := newBackend()
		c.spoil(d)
		w := d.post(t, "enroll", "")
		assert.Equal(t, c.code, w.Code, name)
		assert.Equal(t, c.steps, d.steps, name)
		assert.NotContains(t, w.Body.String(), trust.TokenPrefix, name)
	}
}

func TestStartWithin(t *testing.T) {
	d := newBackend()
	w := d.post(t, "drain", `{"start_within_seconds":60}`)
	require.Equal(t, http.StatusAccepted, w.Code, w.Body.String())
	require.Equal(t, time.Minute, d.submitted.StartWithin())
	for _, bad := range []string{"-1", "86401"} {
		require.Equal(t, http.StatusBadRequest, d.post(t, "drain", `{"start_within_seconds":`+bad+`}`).Code)
	}
}
