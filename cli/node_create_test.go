package cli

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// provisionOf and a host are the operation id of the host's provisioning.
const provisionOf = "provision-of-"

// keep adds a node to the inventory, unless its host is taken.
func (a *fakeAPI) keep(w http.ResponseWriter, n *wire.NodeView) bool {
	n.ID = "node-of-" + n.Host
	for _, other := range a.nodes {
		if other.Host == n.Host {
			a.fail(w, schema.NewError(schema.KindInvalidRequest, "another node that is not removed has this host name").
				WithReason("host_taken").WithNext("gpuaas node show "+n.Host))
			return false
		}
	}
	a.nodes = append(a.nodes, *n)
	return true
}

// hold shows a provisioning on its node: the operation while it is open, the instance after it.
func (a *fakeAPI) hold(n *wire.NodeView, op lifecycle.Operation) {
	switch {
	case !op.Status.Ended():
		n.Operation = &wire.OperationSummary{OperationID: op.OperationID, NodeID: n.ID, Host: n.Host, Action: op.Action, Status: op.Status}
	case op.Status == lifecycle.OperationCompleted:
		n.Instance = &lifecycle.Instance{InstanceID: instanceID, Provider: n.OnboardingMode, State: lifecycle.InstanceRunning}
	}
}

// provisionAs is a provisioning of a host that has come to a status.
func provisionAs(host string, s lifecycle.OperationState, stuck *lifecycle.Stuck) lifecycle.OperationStatus {
	op := operation(lifecycle.ActionProvision, s)
	op.OperationID, op.Stuck = provisionOf+host, stuck
	if s.Ended() && s != lifecycle.OperationCompleted {
		op.Outcome = "the machine failed"
	}
	return lifecycle.OperationStatus{Operation: op, Node: lifecycle.NodeRef{NodeID: "node-of-" + host, Host: host}}
}

// parkedFor is a park with a reason of the provider.
func parkedFor(reason string) *lifecycle.Stuck {
	return &lifecycle.Stuck{Phase: lifecycle.PhaseAdopt, Reason: reason, Message: "the provider answered " + reason,
		Next: "gpuaas op retry NODE --reason TEXT", Since: start()}
}

// creating is a harness in which the provisionings of hosts end with the statuses.
func creating(t *testing.T, statuses ...lifecycle.OperationStatus) *harness {
	t.Helper()
	h := setup(t)
	h.api.provisioned = map[string]lifecycle.OperationStatus{}
	for i := range h.api.providers[:2] {
		h.api.providers[i].Disabled = ""
		h.api.providers[i].Catalog = machine.Catalog{Regions: []string{"east", "west"}, Types: []machine.Type{{ID: "small"}, {ID: "huge"}},
			Images: []string{"noble"}, Spot: true, TakesSSHKeys: true}
	}
	for _, st := range statuses {
		h.api.provisioned[st.Node.Host] = st
	}
	return h
}

// create is a command line that creates vm-1, or several nodes in order.
func create(args ...string) []string {
	return append([]string{"node", "create", "vm", "--mode", "libvirt", "--sku", "h100", "--region", "fra1", "--max-parallel", "1"}, args...)
}

const completed, parked, running = lifecycle.OperationCompleted, lifecycle.OperationParked, lifecycle.OperationRunning

// TestNodeCreate: every node has an outcome, and the exit code is that of the worst.
func TestNodeCreate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ends []lifecycle.OperationStatus
		args []string
		exit int
		// started is how many provisionings start.
		started int
	}{
		"running": {[]lifecycle.OperationStatus{provisionAs("vm-1", completed, nil), provisionAs("vm-2", completed, nil)},
			[]string{"--count", "2", "--reason", "RMA-4411"}, schema.ExitDone, 2},
		"running-json": {[]lifecycle.OperationStatus{provisionAs("vm", completed, nil)}, []string{"-o", "json"}, schema.ExitDone, 1},
		"quota": {[]lifecycle.OperationStatus{provisionAs("vm-1", completed, nil), provisionAs("vm-2", parked, parkedFor(machine.ReasonQuota)),
			provisionAs("vm-3", completed, nil)}, []string{"--count", "3"}, schema.ExitPending, 2},
		"quota-json": {[]lifecycle.OperationStatus{provisionAs("vm-1", parked, parkedFor(machine.ReasonQuota))},
			[]string{"--count", "2", "-o", "json"}, schema.ExitPending, 1},
		"parked": {[]lifecycle.OperationStatus{provisionAs("vm-1", parked, parkedFor(machine.ReasonFailed)), provisionAs("vm-2", completed, nil)},
			[]string{"--count", "2"}, schema.ExitPending, 2},
		"failed": {[]lifecycle.OperationStatus{provisionAs("vm-1", lifecycle.OperationCanceled, nil), provisionAs("vm-2", completed, nil)},
			[]string{"--count", "2"}, schema.ExitFailed, 2},
		"abandoned": {[]lifecycle.OperationStatus{provisionAs("vm", lifecycle.OperationAbandoned, &lifecycle.Stuck{Message: "no run of the operation is open", Next: "gpuaas node rehydrate NODE"})},
			nil, schema.ExitFailed, 1},
		"pending": {[]lifecycle.OperationStatus{provisionAs("vm", running, nil)}, nil, schema.ExitPending, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := creating(t, c.ends...)
			require.Equal(t, c.exit, h.golden("node-create-"+name, create(c.args...)...))
			require.Len(t, h.temporal.submitted, c.started)
		})
	}
}

// TestNodeCreateAgain: the same command starts nothing on a node that runs, and follows a
// provisioning that is open.
func TestNodeCreateAgain(t *testing.T) {
	t.Parallel()
	h := creating(t, provisionAs("vm-1", completed, nil), provisionAs("vm-2", parked, parkedFor(machine.ReasonCapacity)), provisionAs("vm-3", completed, nil))
	again := create("--count", "3")
	require.Equal(t, schema.ExitPending, h.run(again...))
	h.api.provisioned["vm-2"] = provisionAs("vm-2", completed, nil)
	require.Equal(t, schema.ExitDone, h.run(again...), h.err.String())
	require.Equal(t, 3, strings.Count(h.out.String(), "running"), h.out.String())
	var started []string
	for _, in := range h.temporal.submitted {
		started = append(started, in.Host)
	}
	require.Equal(t, []string{"vm-1", "vm-2", "vm-3"}, started)
}

// TestNodeCreateDiffers: a node that exists and is not what the flags name is an error, and
// nothing starts.
func TestNodeCreateDiffers(t *testing.T) {
	t.Parallel()
	for message, args := range map[string][]string{
		"provider libvirt, not maas":       {"--mode", "maas"},
		"SKU a100, not h100":               {"--sku", "h100"},
		"region ber1, not fra1":            {"--region", "fra1"},
		"class spot, not persistent":       {"--class", "persistent"},
		"workload driver none, not docker": {"--workload-driver", "docker"},
		"provider region east, not west":   {"--provider-region", "west"},
		"type small, not huge":             {"--type", "huge"},
		"image not chosen, not noble":      {"--image", "noble"},
		"a machine that is not spot":       {"--spot"},
		"other SSH keys":                   {"--ssh-key", "KEY"},
		"SKU a100, not h100, region ber1, not fra1, type small, not huge": {"--sku", "h100", "--region", "fra1", "--type", "huge"},
	} {
		t.Run(message, func(t *testing.T) {
			t.Parallel()
			h := creating(t)
			h.api.nodes = append(h.api.nodes, existing())
			for i, arg := range args {
				if arg == "KEY" {
					args[i] = h.keyFile("id.pub", publicKey)
				}
			}
			line := append([]string{"node", "create", "vm", "--mode", "libvirt", "--sku", "a100", "--region", "ber1", "-o", "json"}, args...)
			require.Equal(t, schema.ExitFailed, h.run(line...))
			require.Contains(t, h.out.String(), `"reason": "node vm exists with `+message+`"`)
			require.Contains(t, h.out.String(), `"code": "already_exists"`)
			require.Contains(t, h.out.String(), `"next": "gpuaas node show vm"`)
			require.Empty(t, h.temporal.submitted)
		})
	}
}

// existing is a spot node of libvirt that runs on a small machine.
func existing() wire.NodeView {
	n := node()
	n.ID, n.Host, n.OnboardingMode, n.SKU, n.RegionCode, n.LifecycleClass = "node-of-vm", "vm", "libvirt", "a100", "ber1", inventory.ClassSpot
	n.Instance = &lifecycle.Instance{InstanceID: instanceID, Provider: "libvirt", State: lifecycle.InstanceRunning,
		Options: machine.Options{Region: "east", Type: "small"}}
	return n
}

// TestNodeCreateAgrees: flags that name what a node has, or nothing, are no difference; neither is
// the machine of an instance that ended.
func TestNodeCreateAgrees(t *testing.T) {
	t.Parallel()
	line := []string{"node", "create", "vm", "--mode", "libvirt", "--sku", "a100", "--region", "ber1"}
	h := creating(t, provisionAs("vm", completed, nil))
	h.api.nodes = append(h.api.nodes, existing())
	require.Zero(t, h.run(append(line, "--class", "spot", "--type", "small", "--provider-region", "east")...), h.out.String())
	require.Empty(t, h.temporal.submitted)

	h.api.nodes[1].Instance.State = lifecycle.InstanceTerminated
	require.Zero(t, h.run(append(line, "--type", "huge")...), h.out.String())
	require.Len(t, h.temporal.submitted, 1)
}

// TestNodeCreateChecksFirst: what the provider does not have is refused before a node is
// registered.
func TestNodeCreateChecksFirst(t *testing.T) {
	t.Parallel()
	for message, args := range map[string][]string{
		`no provider "aws"`: {"--mode", "aws"},
		"provider \"manual\" creates no machines (invalid_request: no_created_machine)\nnext:  gpuaas node register vm": {"--mode", "manual"},
		`provider "libvirt" is disabled: no libvirtd`:                                                                   {},
		`provider "maas" has no region "north": it has east, west`:                                                      {"--mode", "maas", "--provider-region", "north"},
		`provider "maas" has no type "tiny": it has small, huge`:                                                        {"--mode", "maas", "--type", "tiny"},
		`provider "maas" has no image "jammy": it has noble`:                                                            {"--mode", "maas", "--image", "jammy"},
	} {
		t.Run(message, func(t *testing.T) {
			t.Parallel()
			h := creating(t)
			h.api.providers[0].Disabled = "no libvirtd"
			require.NotZero(t, h.run(create(append(args, "--count", "2")...)...))
			require.Contains(t, h.err.String(), message)
			require.Empty(t, h.api.registered)
			require.Empty(t, h.temporal.submitted)
		})
	}
}

// TestNodeCreateTwice: of two commands that create the same nodes at once, each reports the
// provisioning that the other started.
func TestNodeCreateTwice(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		other   lifecycle.OperationState // of the provisioning that the other command started
		ends    lifecycle.OperationState
		outcome bulkOutcome
		exit    int
	}{
		"it runs":      {running, completed, createRunning, schema.ExitDone},
		"it parks":     {running, parked, createParked, schema.ExitPending},
		"it has ended": {completed, completed, createRunning, schema.ExitDone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := creating(t, provisionAs("vm", c.ends, nil))
			other := lifecycle.Instance{State: lifecycle.InstanceProvisioning}
			h.env.transport = roundTrip(func(r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/provision") {
					h.api.nodes[1].Instance = &other
					h.api.hold(&h.api.nodes[1], provisionAs("vm", c.other, nil).Operation)
					h.api.nodes[1].Instance.Options = other.Options
				}
				return http.DefaultTransport.RoundTrip(r)
			})
			require.Equal(t, c.exit, h.run(create("-o", "json")...), h.err.String())
			require.Contains(t, h.out.String(), `"outcome": "`+string(c.outcome)+`"`)
			require.Empty(t, h.temporal.submitted)

			h.api.nodes, other.Options.Type = h.api.nodes[:1], "small" // and the flags name another type
			require.Equal(t, schema.ExitFailed, h.run(create("-o", "json", "--type", "huge")...))
		})
	}
}

// TestNodeCreateOfAHeldNode: another operation than a provisioning is none that the command follows.
func TestNodeCreateOfAHeldNode(t *testing.T) {
	t.Parallel()
	h := creating(t)
	h.api.nodes = append(h.api.nodes, existing())
	n := &h.api.nodes[1]
	n.State, n.Instance = lifecycle.NodeBootstrapIssued, nil
	n.Operation = &wire.OperationSummary{OperationID: operationID, NodeID: n.ID, Host: n.Host, Action: lifecycle.ActionEnroll, Status: running}
	require.Equal(t, schema.ExitFailed, h.run("node", "create", "vm", "--mode", "libvirt", "--sku", "a100", "--region", "ber1", "-o", "json"))
	require.Contains(t, h.out.String(), `"code": "operation_in_progress"`)
	require.Contains(t, h.out.String(), `"reason": "enroll is in progress on this node"`)
	require.NotContains(t, h.out.String(), operationID)
}

// TestNodeCreateInterrupted: a wait that stops leaves a node pending, and a node whose provisioning
// did not start is not started.
func TestNodeCreateInterrupted(t *testing.T) {
	t.Parallel()
	t.Run("while it waits", func(t *testing.T) {
		t.Parallel()
		h := creating(t, provisionAs("vm-1", running, nil), provisionAs("vm-2", completed, nil))
		ctx, cancel := context.WithCancel(t.Context())
		h.clock.onWait = func(int) { cancel() }
		h.goldenCtx(ctx, "node-create-interrupted", create("--count", "2")...)
		require.Len(t, h.temporal.submitted, 1)
	})
	for name, c := range map[string]struct {
		path    string // the request that is interrupted
		outcome bulkOutcome
	}{
		"before the start": {"/nodes", createNotStarted},
		"in the start":     {"/provision", createPending},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := creating(t, provisionAs("vm", completed, nil))
			ctx, cancel := context.WithCancel(t.Context())
			h.env.transport = roundTrip(func(r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, c.path) {
					cancel()
				}
				return http.DefaultTransport.RoundTrip(r)
			})
			require.Equal(t, schema.ExitPending, h.runCtx(ctx, create("-o", "json")...), h.err.String())
			require.Contains(t, h.out.String(), `"outcome": "`+string(c.outcome)+`"`)
			require.NotContains(t, h.out.String(), `"operation_id"`)
		})
	}
	t.Run("without a response", func(t *testing.T) {
		t.Parallel()
		h := creating(t, provisionAs("vm", running, nil))
		h.env.transport = roundTrip(func(r *http.Request) (*http.Response, error) {
			if strings.Contains(r.URL.Path, "/operations/") {
				return nil, context.DeadlineExceeded
			}
			return http.DefaultTransport.RoundTrip(r)
		})
		h.golden("node-create-unreachable", create()...)
		require.GreaterOrEqual(t, h.clock.waited(), silenceBudget)
	})
}
