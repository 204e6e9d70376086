package activities_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/testsuite"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/cause"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
)

// parks is a database with parked operations, one of each node.
type parks struct {
	open   []activities.UnexplainedPark
	reason string
	kept   map[string]cause.Report
	err    error
	moved  string // the operation that left its park meanwhile
}

func (p *parks) Unexplained(context.Context, int) ([]activities.UnexplainedPark, error) {
	return p.open, p.err
}

func (p *parks) Evidence(_ context.Context, nodeID string, _ time.Duration) (cause.Evidence, error) {
	e := cause.Evidence{At: time.Now(), Node: cause.Node{ID: nodeID, Host: nodeID}, Around: cause.Around{Receiving: true},
		Provider: cause.Provider{Name: "cloud", Described: true}, Park: cause.Park{OperationID: "op-" + nodeID, Reason: p.reason, Since: time.Now()}}
	if e.Park.OperationID == p.moved {
		e.Park = cause.Park{}
	}
	return e, nil
}

func (p *parks) KeepCause(_ context.Context, r cause.Report) error {
	p.kept[r.OperationID] = r
	return nil
}

// describer is a provider that only describes machines.
type describer struct {
	activities.MachineProvider
	err   error
	calls int
}

func (d *describer) Describe(context.Context, machine.Ref) (machine.Machine, error) {
	d.calls++
	return machine.Machine{Phase: machine.Running}, d.err
}

func explain(t *testing.T, x *activities.Explain) (s activities.ExplainSummary, err error) {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	env.RegisterActivity(x)
	v, err := env.ExecuteActivity(x.ExplainParks)
	if err == nil {
		require.NoError(t, v.Get(&s))
	}
	return s, err
}

func newParks(reason string, nodes ...string) *parks {
	p := &parks{reason: reason, kept: map[string]cause.Report{}}
	for _, n := range nodes {
		p.open = append(p.open, activities.UnexplainedPark{OperationID: "op-" + n, NodeID: n, Host: n, Provider: "cloud", InstanceID: "i-" + n})
	}
	return p
}

// TestExplainParks asks the provider only about parks that wait for it, once if it does not respond.
func TestExplainParks(t *testing.T) {
	t.Parallel()
	none := func(context.Context) []cause.Fault { return nil }
	unavailable := schema.NewError(schema.KindServiceUnavailable, "502 from the provider").WithReason(machine.ReasonUnavailable)
	for name, tc := range map[string]struct {
		reason string
		err    error
		calls  int
		top    string
	}{
		"provider answers":  {lifecycle.ReasonProviderSilent, nil, 2, "provider_slow"},
		"provider is down":  {lifecycle.ReasonProviderSilent, unavailable, 1, "provider_failing"},
		"no machine":        {lifecycle.ReasonProviderSilent, schema.NewError(schema.KindNotFound, "none").WithReason(machine.ReasonMissing), 2, "provider_slow"},
		"not the provider":  {lifecycle.ReasonProbeFailed, unavailable, 0, "none"},
		"untyped error":     {lifecycle.ReasonProviderSilent, errors.New("boom"), 2, "provider_failing"},
		"quota of provider": {machine.ReasonQuota, unavailable, 0, machine.ReasonQuota},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, d := newParks(tc.reason, "a", "b"), &describer{err: tc.err}
			s, err := explain(t, &activities.Explain{Causes: p, Faults: none, Providers: map[string]activities.Source{"cloud": {Provider: d}}})
			require.NoError(t, err)
			require.Equal(t, tc.calls, d.calls)
			require.Equal(t, activities.ExplainSummary{Explained: 2, Causes: map[string]int{tc.top: 2}}, s)
			require.Len(t, p.kept, 2)
		})
	}
}

// TestExplainSkips an operation that left its park, and explains the others.
func TestExplainSkips(t *testing.T) {
	t.Parallel()
	p := newParks(lifecycle.ReasonVaultSealed, "a", "b")
	p.moved = "op-a"
	s, err := explain(t, &activities.Explain{Causes: p, Faults: func(context.Context) []cause.Fault {
		return []cause.Fault{{Component: "vault", Reason: "sealed", Message: "Vault is sealed"}}
	}})
	require.NoError(t, err)
	require.Equal(t, map[string]int{"vault_sealed": 1}, s.Causes)
	p.err = schema.NewError(schema.KindServiceUnavailable, "Postgres does not respond")
	_, err = explain(t, &activities.Explain{Causes: p})
	require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(activities.Typed(err)))
}
