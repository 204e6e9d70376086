package maas_test

import (
	"context"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"

	"github.com/gpuaas/gpuaas/activities"
	boots "github.com/gpuaas/gpuaas/internal/boot"
	"github.com/gpuaas/gpuaas/internal/providers/maas"
	"github.com/gpuaas/gpuaas/internal/providers/maas/maastest"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/harness"
)

// references follow the rules of store.Identities.IssueBoot: a node has one live reference, and
// no try of the operation voids that of another one.
type references struct {
	mu   sync.Mutex
	live string // the ID
}

func (r *references) TokenExpiry(context.Context) (time.Time, error) {
	return time.Now().Add(time.Hour), nil
}

func (r *references) IssueBoot(_ context.Context, t trust.MintedToken, _ activities.Fence, _ time.Duration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.live != "" {
		return machine.Errorf(machine.ReasonStarting, "another try has issued a reference")
	}
	r.live = t.TokenID
	return nil
}

func (r *references) issuer() boots.Issuer {
	return boots.Issuer{Tokens: r, NodeURL: "https://node-api.test:8443", CA: func(context.Context) (string, error) { return "CA", nil }}
}

// requireLive requires that the user data contain the live reference and no other token.
func (r *references) requireLive(t *testing.T, userData []byte) {
	t.Helper()
	found := regexp.MustCompile(trust.TokenPrefix+`[A-Za-z0-9._-]+`).FindAllString(string(userData), -1)
	require.Len(t, found, 1)
	id, _, err := trust.ParseToken(found[0])
	require.NoError(t, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Equal(t, r.live, id)
}

// first is what a machine of MAAS runs on its first boot.
type first struct {
	host     string
	userData []byte
}

// newSite starts a double whose machines boot, and opens an adapter for each of two workers.
func newSite(t *testing.T) (server *maastest.Server, booted chan first, workers [2]activities.Source) {
	t.Helper()
	booted = make(chan first, 8)
	server = maastest.New(maastest.Options{Delays: maastest.Delays{Power: time.Millisecond, Deploy: 5 * time.Millisecond},
		Boot: func(m maastest.Machine, userData []byte) { booted <- first{m.Hostname, userData} }},
		maastest.Machine{Hostname: "rack-1", Zone: "zone-1", Pool: "gpu", Tags: []string{"gpuaas", "h100"}, CPUs: 64, MemoryMiB: 512 << 10},
		maastest.Machine{Hostname: "rack-2", Zone: "zone-1", Pool: "gpu", Tags: []string{"gpuaas", "h100"}, CPUs: 64, MemoryMiB: 512 << 10})
	t.Cleanup(server.Close)
	for i := range workers {
		workers[i] = open(t, server)
	}
	return server, booted, workers
}

// ledger accepts everything.
type ledger struct{ created chan string }

func (ledger) Plan(_ context.Context, _ activities.Fence, r activities.Resource) (activities.Resource, error) {
	return r, nil
}

func (l ledger) Created(_ context.Context, _ activities.Fence, _, externalID string) error {
	l.created <- externalID
	return nil
}

func (ledger) Released(context.Context, activities.Fence, string) error { return nil }

func (ledger) Open(context.Context, activities.Fence) ([]activities.Resource, error) { return nil, nil }

// TestProvision: the activities of a provisioning deploy a machine, which boots once with the
// reference. No call that is repeated deploys it again.
func TestProvision(t *testing.T) {
	t.Parallel()
	server, booted, workers := newSite(t)
	refs, l := &references{}, ledger{make(chan string, 2)}
	m := &activities.Machine{Ledger: l, Boots: refs.issuer(), Providers: map[string]activities.Source{maas.Name: workers[0]}}
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	env.RegisterActivity(m)
	in := provisioning()
	for range 2 {
		_, err := env.ExecuteActivity(m.EnsureMachine, in)
		require.NoError(t, err)
	}
	first, second := <-l.created, <-l.created
	require.Equal(t, first, second)
	require.Eventually(t, func() bool {
		_, err := env.ExecuteActivity(m.AwaitMachine, in)
		return err == nil
	}, harness.Timeout, 5*time.Millisecond)
	b := harness.Receive(t, "the machine boots", booted)
	require.Contains(t, []string{"rack-1", "rack-2"}, b.host)
	refs.requireLive(t, b.userData)
	require.Len(t, server.Used(), 1)

	p := workers[1].Provider
	require.NoError(t, p.Power(t.Context(), ref(spec(1)), machine.PowerReset))
	await(t, p, spec(1), machine.Running)
	require.NoError(t, p.Delete(t.Context(), ref(spec(1))))
	require.Empty(t, booted, "cloud-init runs the user data once")
}

// TestProvisionFails: an unreachable MAAS, and boot data that cannot be made, are
// service_unavailable with the cause in the message. Temporal repeats the call, and no machine
// stays allocated.
func TestProvisionFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault  maastest.Fault
		ca     error
		reason string
		says   string
	}{
		"MAAS is unavailable":   {fault: maastest.Unavailable, reason: machine.ReasonUnavailable, says: "Unable to connect to any rack controller"},
		"MAAS does not respond": {fault: maastest.LostRequest, reason: machine.ReasonUnavailable, says: "cannot find the machine of instance"},
		"the CA is unavailable": {ca: schema.NewError(schema.KindServiceUnavailable, "Vault is sealed").WithReason("vault_sealed"), reason: "vault_sealed", says: "Vault is sealed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, booted, workers := newSite(t)
			if c.fault != "" {
				server.Inject(c.fault, 1, "list")
			}
			issuer := (&references{}).issuer()
			issuer.CA = func(context.Context) (string, error) { return "CA", c.ca }
			m := &activities.Machine{Ledger: ledger{make(chan string, 1)}, Boots: issuer, Providers: map[string]activities.Source{maas.Name: workers[0]}}
			var suite testsuite.WorkflowTestSuite
			env := suite.NewTestActivityEnvironment()
			env.RegisterActivity(m)
			_, err := env.ExecuteActivity(m.EnsureMachine, provisioning())
			e := activities.Typed(unwrapped(t, err))
			require.NotNil(t, e, "%v", err)
			require.Equal(t, schema.KindServiceUnavailable, e.Kind)
			require.Equal(t, c.reason, e.Reason)
			require.Contains(t, e.Message, c.says)
			require.True(t, e.Kind.Info().Retry)
			require.Empty(t, server.Used())
			_, err = env.ExecuteActivity(m.EnsureMachine, provisioning())
			if c.ca == nil {
				require.NoError(t, err, "the repeated call")
				require.NotEmpty(t, harness.Receive(t, "the machine boots", booted).userData)
			}
		})
	}
}

// unwrapped returns the error of an activity as its workflow receives it.
func unwrapped(t *testing.T, err error) error {
	t.Helper()
	var app *temporal.ApplicationError
	require.ErrorAs(t, err, &app)
	require.False(t, app.NonRetryable())
	return app
}

// provisioning is the input of the activities.
func provisioning() activities.MachineInput {
	return activities.MachineInput{Fence: activities.Fence{NodeID: "n-1", OperationID: "op-1"}, Host: "gpu-1",
		Instance: lifecycle.Instance{InstanceID: spec(1).InstanceID, Provider: maas.Name, Options: spec(1).Options}}
}

// TestSecondTryKeepsTheReference: two tries create a machine at once. Whichever of them gets the
// boot data deploys the machine with a live reference, and the other one neither voids the
// reference nor releases the machine.
func TestSecondTryKeepsTheReference(t *testing.T) {
	t.Parallel()
	for name, otherFirst := range map[string]bool{"the one that allocated it": false, "the other one": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, booted, workers := newSite(t)
			refs := &references{}
			issue := func(ctx context.Context) (activities.Boot, error) {
				return refs.issuer().NewBoot(ctx, activities.Fence{NodeID: "n-1"})
			}
			var otherErr error
			other := func() { _, otherErr = workers[1].Provider.Create(t.Context(), spec(1), issue) }
			_, err := workers[0].Provider.Create(t.Context(), spec(1), func(ctx context.Context) (activities.Boot, error) {
				if otherFirst {
					other()
					return issue(ctx)
				}
				defer other() // between the issue and the deployment
				return issue(ctx)
			})
			if otherFirst {
				err, otherErr = otherErr, err
			}
			require.NoError(t, err)
			require.True(t, machine.Is(otherErr, machine.ReasonStarting), "%v", otherErr)
			refs.requireLive(t, harness.Receive(t, "the machine boots", booted).userData)
			_, err = workers[1].Provider.Create(t.Context(), spec(1), issue)
			require.NoError(t, err, "the repeated try finds the machine")
			await(t, workers[0].Provider, spec(1), machine.Running)
			require.Len(t, server.Used(), 1)
			require.Empty(t, booted)
		})
	}
}

// TestTriesRace: however many tries run at once, one machine boots, with a live reference.
func TestTriesRace(t *testing.T) {
	t.Parallel()
	server, booted, workers := newSite(t)
	refs := &references{}
	var tries sync.WaitGroup
	for i := range 8 {
		tries.Go(func() {
			assert.Eventually(t, func() bool {
				_, err := workers[i%2].Provider.Create(t.Context(), spec(1), func(ctx context.Context) (activities.Boot, error) {
					return refs.issuer().NewBoot(ctx, activities.Fence{NodeID: "n-1"})
				})
				return err == nil
			}, 20*time.Second, 5*time.Millisecond)
		})
	}
	tries.Wait()
	refs.requireLive(t, harness.Receive(t, "the machine boots", booted).userData)
	require.Len(t, server.Used(), 1)
	require.Empty(t, booted)
}
