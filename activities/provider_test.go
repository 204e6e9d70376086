package activities_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/trust"
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
	// described are the phases that the next calls of Describe report, powered the changes.
	described []machine.Phase
	powered   []machine.Power
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

// siteProvider is the provider of a site. Its machines are gone when the calls of Describe
// say so.
type siteProvider struct{ *site }

func (s siteProvider) Create(ctx context.Context, spec machine.Spec, _ activities.BootData) (machine.Machine, error) {
	return machine.Machine{Ref: machine.Ref{InstanceID: spec.InstanceID, ExternalID: "m-1"}, Phase: machine.Creating}, s.ensure(ctx)
}

func (s siteProvider) Describe(_ context.Context, r machine.Ref) (machine.Machine, error) {
	if len(s.described) == 0 {
		return machine.Machine{}, machine.Errorf(machine.ReasonMissing, "no machine")
	}
	phase := s.described[0]
	s.described = s.described[1:]
	return machine.Machine{Ref: r, Phase: phase, Detail: "ERR\n42"}, nil
}

func (s siteProvider) Power(_ context.Context, _ machine.Ref, p machine.Power) error {
	s.powered = append(s.powered, p)
	return nil
}

func (s siteProvider) Console(context.Context, machine.Ref) ([]byte, error) {
	return []byte(strings.Repeat("x", 2*machine.MaxConsole) + "\x1b[31mpanic " + trust.TokenPrefix + strings.Repeat("secret", 60)), nil
}

func (s siteProvider) Delete(_ context.Context, r machine.Ref) error {
	s.released = append(s.released, r.InstanceID)
	return nil
}

func (s siteProvider) List(context.Context) ([]machine.Machine, error) { return nil, nil }

// onSite is an instance of the site.
func onSite() lifecycle.Instance { return lifecycle.Instance{InstanceID: "i-1", Provider: "site"} }

func machineEnv(s *site) (*testsuite.TestActivityEnvironment, *activities.Machine) {
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	m := &activities.Machine{Ledger: s, Providers: map[string]activities.Source{"site": {Info: machine.Info{Name: "site", Creates: true}, Provider: siteProvider{s}}}}
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
	_, err := env.ExecuteActivity(m.EnsureMachine, activities.MachineInput{Instance: onSite(), Host: "gpu-17"})
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
// the node's other ones. If it asked for none, nothing is released.
func TestReturnMachine(t *testing.T) {
	t.Parallel()
	other := activities.Resource{ResourceID: "r-other", Kind: "instance", Provider: "site"}
	s := &site{others: []activities.Resource{other}, ensure: func(context.Context) error { return nil }}
	env, m := machineEnv(s)
	in := activities.MachineInput{Fence: activities.Fence{NodeID: "n", OperationID: "op-1"}, Instance: onSite(), Host: "gpu-17"}
	back := func() (released int) {
		t.Helper()
		v, err := env.ExecuteActivity(m.ReturnMachine, in)
		require.NoError(t, err)
		require.NoError(t, v.Get(&released))
		return released
	}
	require.Zero(t, back())
	_, err := env.ExecuteActivity(m.EnsureMachine, in)
	require.NoError(t, err)
	require.Equal(t, 1, back())
	require.Zero(t, back(), "a second run")
	require.Equal(t, []string{s.planned.ResourceID}, s.released)
}

// TestTearDownWaits: an entry stays open until the provider has no machine.
func TestTearDownWaits(t *testing.T) {
	t.Parallel()
	s := &site{state: activities.ResourceCreated, described: []machine.Phase{machine.Deleting}}
	env, m := machineEnv(s)
	_, err := env.ExecuteActivity(m.TearDownMachine, activities.Fence{NodeID: "n"})
	require.Equal(t, machine.ReasonDeleting, activities.Typed(err).Reason)
	require.Equal(t, schema.KindServiceUnavailable, activities.Typed(err).Kind)
	require.Equal(t, activities.ResourceCreated, s.state)
	_, err = env.ExecuteActivity(m.TearDownMachine, activities.Fence{NodeID: "n"})
	require.NoError(t, err)
	require.Equal(t, activities.ResourceReleased, s.state)
}

func TestAwaitMachine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		phases  []machine.Phase
		reason  string
		final   bool
		powered []machine.Power
	}{
		"running":  {[]machine.Phase{machine.Running}, "", false, nil},
		"creating": {[]machine.Phase{machine.Creating}, machine.ReasonStarting, false, nil},
		"stopped":  {[]machine.Phase{machine.Stopped}, machine.ReasonStarting, false, []machine.Power{machine.PowerOn}},
		"failed":   {[]machine.Phase{machine.Failed}, machine.ReasonFailed, true, nil},
		"deleting": {[]machine.Phase{machine.Deleting}, machine.ReasonFailed, true, nil},
		"missing":  {nil, machine.ReasonMissing, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &site{described: c.phases}
			env, m := machineEnv(s)
			_, err := env.ExecuteActivity(m.AwaitMachine, activities.MachineInput{Instance: onSite(), Host: "gpu-17"})
			require.Equal(t, c.powered, s.powered)
			if c.reason == "" {
				require.NoError(t, err)
				return
			}
			e := activities.Typed(err)
			require.Equal(t, c.reason, e.Reason)
			require.Equal(t, c.final, !e.Kind.Info().Retry)
			require.LessOrEqual(t, len(e.Message), 1024)
			require.NotContains(t, e.Message, "\n")
			require.NotContains(t, e.Message, "\x1b")
			require.NotContains(t, e.Message, "panic", "the audit trail keeps the message")
		})
	}
}

// TestDescribeMachine: the description of a machine is one short line without control characters
// and tokens.
func TestDescribeMachine(t *testing.T) {
	t.Parallel()
	env, m := machineEnv(&site{described: []machine.Phase{machine.Failed}})
	v, err := env.ExecuteActivity(m.DescribeMachine, activities.MachineInput{Instance: onSite(), Host: "gpu-17"})
	require.NoError(t, err)
	var line string
	require.NoError(t, v.Get(&line))
	require.Contains(t, line, "the machine is failed: ERR 42; its console ends with: ")
	require.Contains(t, line, "panic")
	require.NotContains(t, line, "\x1b")
	require.NotContains(t, line, "secret")
	require.Less(t, len(line), 1024)
}

// TestVerifyMachine: after a canceled teardown, the ledger keeps the machine that its provider still
// has, and no other entry is touched.
func TestVerifyMachine(t *testing.T) {
	t.Parallel()
	in := activities.MachineInput{Fence: activities.Fence{NodeID: "n", OperationID: "op-1"}, Instance: onSite(), Host: "gpu-17"}
	for name, c := range map[string]struct {
		state  activities.ResourceState
		phases []machine.Phase
		after  activities.ResourceState
		reason string
	}{
		"running":      {activities.ResourceCreated, []machine.Phase{machine.Running}, activities.ResourceCreated, ""},
		"creating":     {activities.ResourceCreated, []machine.Phase{machine.Creating}, activities.ResourceCreated, ""},
		"stopped":      {activities.ResourceCreated, []machine.Phase{machine.Stopped}, activities.ResourceCreated, machine.ReasonFailed},
		"failed":       {activities.ResourceCreated, []machine.Phase{machine.Failed}, activities.ResourceCreated, machine.ReasonFailed},
		"deleting":     {activities.ResourceCreated, []machine.Phase{machine.Deleting}, activities.ResourceCreated, machine.ReasonDeleting},
		"gone":         {activities.ResourceCreated, nil, activities.ResourceReleased, ""},
		"only planned": {activities.ResourcePlanned, nil, activities.ResourceReleased, ""},
		"released":     {activities.ResourceReleased, nil, activities.ResourceReleased, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			other := activities.Resource{ResourceID: "r-other", Kind: "instance", Provider: "site"}
			s := &site{state: c.state, described: c.phases, others: []activities.Resource{other}}
			s.planned.ResourceID = in.Instance.InstanceID
			env, m := machineEnv(s)
			_, err := env.ExecuteActivity(m.VerifyMachine, in)
			require.Equal(t, c.after, s.state)
			require.Empty(t, s.released, "nothing is deleted")
			if c.reason == "" {
				require.NoError(t, err)
				return
			}
			require.Equal(t, c.reason, activities.Typed(err).Reason)
			require.Equal(t, c.reason == machine.ReasonDeleting, activities.Typed(err).Kind.Info().Retry)
		})
	}
}
