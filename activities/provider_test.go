package activities_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
)

// site is a provider with a ledger of one entry.
type site struct {
	ensure  func(ctx context.Context) error
	state   activities.ResourceState
	reopens int // how often the entry is open again after its release
	// others are open entries of other operations; released are the IDs of the calls.
	others   []activities.Resource
	planned  activities.Resource
	released []string
}

func (s *site) Plan(_ context.Context, _ activities.Fence, r activities.Resource) (activities.Resource, error) {
	s.state, s.planned = activities.ResourcePlanned, r
	return r, nil
}

func (s *site) Created(context.Context, activities.Fence, string, string) error {
	s.state = activities.ResourceCreated
	return nil
}

func (s *site) Released(context.Context, activities.Fence, string) error {
	s.state = activities.ResourceReleased
	if s.reopens > 0 {
		s.reopens--
		s.state = activities.ResourceCreated
	}
	return nil
}

func (s *site) Open(context.Context, activities.Fence) ([]activities.Resource, error) {
	if s.state == activities.ResourceReleased || s.state == "" {
		return slices.Clone(s.others), nil
	}
	own := s.planned
	own.Provider = "site"
	return append(slices.Clone(s.others), own), nil
}

func (s *site) Name() string  { return "site" }
func (s *site) Creates() bool { return true }

func (s *site) Ensure(ctx context.Context, _ activities.Resource, _ string) (string, error) {
	if err := s.ensure(ctx); err != nil {
		return "", err
	}
	return "m-1", nil
}

func (s *site) Release(_ context.Context, r activities.Resource) error {
	s.released = append(s.released, r.ResourceID)
	return nil
}

func machineEnv(s *site) (*testsuite.TestActivityEnvironment, *activities.Machine) {
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	m := &activities.Machine{Ledger: s, Providers: map[string]activities.Provider{"site": s}}
	env.RegisterActivity(m)
	return env, m
}

// TestCancelDoesNotInterruptACreation: the provider's call ends and its machine is in the
// ledger, although the operation was canceled while the call ran. The call still has a
// time limit.
func TestCancelDoesNotInterruptACreation(t *testing.T) {
	t.Parallel()
	background, cancel := context.WithCancel(t.Context())
	s := &site{ensure: func(ctx context.Context) error {
		cancel()
		require.NoError(t, ctx.Err())
		limit, ok := ctx.Deadline()
		require.True(t, ok)
		require.LessOrEqual(t, time.Until(limit), activities.ProviderTimeout)
		return nil
	}}
	env, m := machineEnv(s)
	env.SetWorkerOptions(worker.Options{BackgroundActivityContext: background})
	_, err := env.ExecuteActivity(m.EnsureMachine, activities.EnsureInput{Provider: "site", Host: "gpu-17"})
	require.NoError(t, err)
	require.Equal(t, activities.ResourceCreated, s.state)
}

// TestTearDownVerifies: a teardown ends when the ledger has no open entry, also of a
// machine that appeared meanwhile.
func TestTearDownVerifies(t *testing.T) {
	t.Parallel()
	s := &site{state: activities.ResourceCreated, reopens: 1}
	env, m := machineEnv(s)
	v, err := env.ExecuteActivity(m.TearDownMachine, activities.Fence{NodeID: "n"})
	require.NoError(t, err)
	var released int
	require.NoError(t, v.Get(&released))
	require.Equal(t, 2, released)
	require.Equal(t, activities.ResourceReleased, s.state)

	s = &site{state: activities.ResourceCreated, reopens: 99}
	env, m = machineEnv(s)
	_, err = env.ExecuteActivity(m.TearDownMachine, activities.Fence{NodeID: "n"})
	var app *temporal.ApplicationError
	require.ErrorAs(t, err, &app)
	require.Equal(t, string(schema.KindServiceUnavailable), app.Type(), "the next try continues")
	require.False(t, app.NonRetryable())
}

// TestReturnMachine: a canceled operation returns the machine that it asked for, and not
// those of other operations. If it asked for none, nothing is released.
func TestReturnMachine(t *testing.T) {
	t.Parallel()
	other := activities.Resource{ResourceID: "r-other", Kind: "instance", Provider: "site"}
	s := &site{others: []activities.Resource{other}, ensure: func(context.Context) error { return nil }}
	env, m := machineEnv(s)
	f := activities.Fence{NodeID: "n", OperationID: "op-1"}
	back := func() (released int) {
		t.Helper()
		v, err := env.ExecuteActivity(m.ReturnMachine, f)
		require.NoError(t, err)
		require.NoError(t, v.Get(&released))
		return released
	}
	require.Zero(t, back())
	_, err := env.ExecuteActivity(m.EnsureMachine, activities.EnsureInput{Fence: f, Provider: "site", Host: "gpu-17"})
	require.NoError(t, err)
	require.Equal(t, 1, back())
	require.Zero(t, back(), "a second run")
	require.Equal(t, []string{s.planned.ResourceID}, s.released)
}
