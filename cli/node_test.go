package cli

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func TestNodeRegister(t *testing.T) {
	t.Parallel()
	args := []string{"node", "register", "gpu-18", "--sku", "h100", "--region", "fra1", "--gpus", "8", "--mode", "manual", "--class", "spot",
		"--workload-driver", "docker", "--probe"}
	t.Run("table", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.golden("register", args...)
		require.Equal(t, nodeID+"\n", h.out.String())
		require.Equal(t, []wire.RegisterNodeRequest{{Host: "gpu-18", SKU: "h100", GPUsTotal: 8, RegionCode: "fra1",
			OnboardingMode: "manual", LifecycleClass: inventory.ClassSpot, WorkloadDriver: "docker", Probe: true}}, h.api.registered)
	})
	t.Run("json", func(t *testing.T) {
		t.Parallel()
		setup(t).golden("register-json", append(args, "-o", "json")...)
	})
	t.Run("refusals name the flags", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		for message, want := range map[string]string{
			"region_code must be short": "--region must be short", "gpus_total must not be negative": "--gpus must not be negative",
			"sku must be a name": "--sku must be a name", "remove_labels must be at most 64": "--label must be at most 64",
		} {
			h.api.refuse = schema.NewError(schema.KindInvalidRequest, "%s", message).WithNext("register it with onboarding_mode manual")
			require.Equal(t, schema.ExitRefused, h.run(args...))
			require.Contains(t, h.err.String(), "error: "+want+" (")
			require.Contains(t, h.err.String(), "register it with --mode manual")
		}
	})
	t.Run("on a provider that creates the machine", func(t *testing.T) {
		t.Parallel()
		setup(t).golden("register-libvirt", "node", "register", "vm-1", "--sku", "h100", "--region", "fra1", "--mode", "libvirt")
	})
	t.Run("the next step is that of the provider", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.api.providers = append(h.api.providers, machine.Provider{Info: machine.Info{Name: "rack"}})
		require.Zero(t, h.run("node", "register", "gpu-18", "--sku", "h100", "--region", "fra1", "--mode", "rack"))
		require.Contains(t, h.err.String(), "next: gpuaas node bootstrap-script gpu-18", "it creates no machines")
		h.env.transport = roundTrip(func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/providers") {
				return nil, context.DeadlineExceeded
			}
			return http.DefaultTransport.RoundTrip(r)
		})
		require.Zero(t, h.run("node", "register", "gpu-18", "--sku", "h100", "--region", "fra1", "--mode", "rack"), "the node is registered")
		require.Contains(t, h.err.String(), "next: gpuaas provider show rack")
	})
	t.Run("unknown SKU", func(t *testing.T) {
		t.Parallel()
		setup(t).golden("register-unknown-sku", "node", "register", "gpu-18", "--sku", "b300", "--region", "fra1")
	})
}

// busy is gpu-17 with every field that node show prints.
func busy() wire.NodeView {
	n := node()
	n.State, n.StateSince, n.Cordoned = lifecycle.NodeDraining, start().Add(-12*time.Minute), true
	n.LastHeartbeatAt = at(-5 * time.Second)
	n.AgentVersion, n.UptimeSeconds, n.WorkloadDriver, n.Driver = "1.2.0", 90061, "docker", "docker"
	n.Workloads = []task.Workload{train()}
	n.Workloads[0].Warning = "its data is lost"
	n.Instance = &lifecycle.Instance{InstanceID: "0198f000-0000-7000-8000-0000000000e3", Provider: "manual", ExternalID: "gpu-17",
		State: lifecycle.InstanceRunning, StateSince: start().Add(-25 * time.Hour)}
	n.Identity = &trust.CertFacts{URI: "spiffe://dev/node/" + nodeID + "/1", Issuer: "CN=gpuaas node CA", Serial: "4f2a", NotAfter: start().Add(70 * time.Hour)}
	st := parkedDrain()
	n.Operation = &wire.OperationSummary{OperationID: operationID, NodeID: nodeID, Host: "gpu-17", Action: lifecycle.ActionDrain,
		Status: lifecycle.OperationParked, Phase: lifecycle.PhaseDrain, Actor: "bob@laptop", StartedAt: start().Add(-13 * time.Minute), Stuck: st.Operation.Stuck}
	n.Facts = &inventory.Facts{OS: "Debian 12", Kernel: "6.1.0", Arch: "amd64", CPUs: 96, CPUModel: "EPYC 9654", MemoryBytes: 1536 << 30,
		Disks: []inventory.Disk{{Name: "nvme0n1", SizeBytes: 3840755982336, Model: "Micron"}},
		NICs:  []inventory.NIC{{Name: "eth0", Addresses: []string{"10.0.0.17/24"}}},
		GPUs:  []inventory.GPU{{Index: 0, Model: "NVIDIA H100", MemoryBytes: 80 << 30}}}
	return n
}

func TestNodeRead(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"list": {"node", "list"}, "list-json": {"node", "list", "-o", "json"},
		"show": {"node", "show", "gpu-17"}, "show-new": {"node", "show", "gpu-18"}, "show-yaml": {"node", "show", "gpu-18", "-o", "yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			fresh := node()
			fresh.ID, fresh.Host, fresh.State = "0198f000-0000-7000-8000-000000000018", "gpu-18", lifecycle.NodeRegistered
			h.api.nodes = []wire.NodeView{busy(), fresh}
			h.golden("node-"+name, args...)
		})
	}
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.api.nodes = nil
		h.golden("node-list-none", "node", "list")
		h.golden("node-list-none-json", "node", "list", "-o", "json")
		h.golden("node-list-none-matches", "node", "list", "--region", "fra9")
	})
	t.Run("what a node wrote cannot steer the terminal", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		n := busy()
		n.Workloads[0].Name = "evil\x1b]0;title\x07\n\tName: forged"
		n.Facts.OS = "\x1b[2J"
		h.api.nodes = []wire.NodeView{n}
		h.golden("node-show-escapes", "node", "show", "gpu-17")
		require.NotContains(t, h.out.String(), "\x1b")
	})
}

func TestNodeEnroll(t *testing.T) {
	t.Parallel()
	read := func(t *testing.T, path string) trust.BootstrapBundle {
		t.Helper()
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		var b trust.BootstrapBundle
		require.NoError(t, json.Unmarshal(text, &b))
		left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".*"))
		require.NoError(t, err)
		require.Empty(t, left, "no half-written file stays")
		return b
	}
	t.Run("to the default file", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.golden("enroll", "node", "enroll", "gpu-17", "--reason", "new rack", "--idempotency-key", "k1")
		require.Equal(t, enrollToken, read(t, filepath.Join(h.env.dir, "gpu-17.bundle.json")).EnrollmentToken)
		require.Equal(t, []wire.LifecycleRequest{{Reason: "new rack"}}, h.api.enrolled)
		require.Empty(t, h.temporal.submitted)
		require.NotContains(t, h.out.String(), enrollToken)
	})
	t.Run("of a node whose machine its provider creates", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.api.note = "provider libvirt creates the machine of this node: gpuaas node provision gpu-17; an enrollment is for a host of your own"
		h.golden("enroll-note", "node", "enroll", "gpu-17")
		h.golden("script-note", "node", "bootstrap-script", "gpu-17")
	})
	t.Run("over a file that others could read", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		path := filepath.Join(h.env.dir, "mine.json")
		require.NoError(t, os.WriteFile(path, []byte("old"), 0o644))
		require.Zero(t, h.run("node", "enroll", "gpu-17", "--bundle", path))
		require.Equal(t, nodeID, read(t, path).NodeID)
	})
	t.Run("waits for the agent", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		op := operation(lifecycle.ActionEnroll, lifecycle.OperationCompleted)
		op.EndedAt = at(40 * time.Second)
		running := operation(lifecycle.ActionEnroll, lifecycle.OperationRunning)
		running.Phases = []lifecycle.Phase{{Name: lifecycle.PhaseClaim, State: lifecycle.PhaseRunning, Attempt: 1}}
		h.temporal.statuses = []lifecycle.OperationStatus{{Operation: running}, {Operation: op}}
		h.golden("enroll-wait", "node", "enroll", "gpu-17", "--wait")
	})
	t.Run("the wait needs no Temporal", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.temporal.down = true
		h.api.operations = []wire.OperationSummary{{OperationID: operationID, NodeID: nodeID, Action: lifecycle.ActionEnroll,
			Status: lifecycle.OperationCompleted, StartedAt: start(), EndedAt: at(time.Minute)}}
		require.Zero(t, h.run("node", "enroll", "gpu-17", "--wait"))
	})
	t.Run("inline", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		require.Zero(t, h.run("node", "enroll", "gpu-17", "-o", "json"))
		var answer wire.LifecycleResponse
		require.NoError(t, json.Unmarshal(h.out.Bytes(), &answer))
		require.Equal(t, enrollToken, answer.BootstrapBundle.EnrollmentToken)
		require.Equal(t, operationID, answer.Operation.OperationID)
		left, err := os.ReadDir(h.env.dir)
		require.NoError(t, err)
		require.Empty(t, left)
	})
	t.Run("inline and waiting", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.temporal.statuses = []lifecycle.OperationStatus{{Operation: operation(lifecycle.ActionEnroll, lifecycle.OperationFailed)}}
		require.Equal(t, schema.ExitFailed, h.run("node", "enroll", "gpu-17", "-o", "json", "--wait"))
		var answer wire.LifecycleResponse
		require.NoError(t, json.Unmarshal(h.out.Bytes(), &answer), "one object, printed before the wait")
		require.Contains(t, h.err.String(), "enroll gpu-17: failed")
	})
	t.Run("no bundle came", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.api.bundle = nil
		require.Equal(t, schema.ExitFailed, h.run("node", "enroll", "gpu-17"))
		require.Contains(t, h.err.String(), "no bundle")
		left, err := os.ReadDir(h.env.dir)
		require.NoError(t, err)
		require.Empty(t, left)
	})
	t.Run("a file and JSON", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		path := filepath.Join(h.env.dir, "b.json")
		require.Zero(t, h.run("node", "enroll", "gpu-17", "-o", "json", "--bundle", path))
		require.NotContains(t, h.out.String(), enrollToken)
		require.Equal(t, enrollToken, read(t, path).EnrollmentToken)
	})
	t.Run("its variables in a file too", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.api.bundle.Package = &trust.AgentPackage{InstallRoot: "/opt/x", EnvFilePath: "/etc/x.env", SystemdUnitName: "x.service"}
		path := filepath.Join(h.env.dir, "gpu-17.env")
		require.Zero(t, h.run("node", "enroll", "gpu-17", "--env-file", path))
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, h.api.bundle.EnvFile()+"GPUAAS_NODE_AGENT_ENV_FILE=\"/etc/x.env\"\n"+
			"GPUAAS_NODE_AGENT_INSTALL_ROOT=\"/opt/x\"\nGPUAAS_NODE_AGENT_SYSTEMD_UNIT=\"x.service\"\n", string(text))
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
		require.NotContains(t, h.out.String()+h.err.String(), enrollToken)

		h.api.enrolled = nil
		require.Equal(t, schema.ExitUsage, h.run("node", "enroll", "gpu-17", "--env-file", path, "-o", "json"))
		require.Equal(t, schema.ExitRefused, h.run("node", "enroll", "gpu-17", "--env-file", filepath.Join(h.env.dir, "none", "x.env")))
		require.Empty(t, h.api.enrolled, "no token was minted for nothing")
	})
	t.Run("a host name that is no file name", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.api.nodes[0].Host = "../../etc/cron.d/x"
		require.Equal(t, schema.ExitUsage, h.run("node", "enroll", nodeID))
		require.Empty(t, h.api.enrolled, "no token was minted for nothing")
	})
	t.Run("no place to write", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		require.Equal(t, schema.ExitRefused, h.run("node", "enroll", "gpu-17", "--bundle", filepath.Join(h.env.dir, "none", "b.json")))
		require.Empty(t, h.api.enrolled, "no token was minted for nothing")
	})
	t.Run("without the api", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.api.server.Close()
		require.Equal(t, schema.ExitUnreachable, h.run("node", "enroll", "gpu-17"))
	})
}

func TestAPIRequests(t *testing.T) {
	t.Parallel()
	h := setup(t)
	path := filepath.Join(h.env.dir, "token")
	require.NoError(t, os.WriteFile(path, []byte(apiToken+"\n"), 0o600))
	h.vars = map[string]string{"GPUAAS_API_TOKEN_FILE": path}
	require.Zero(t, h.run("node", "list", "--api-url", h.api.server.URL+"/"))
	require.Equal(t, []string{"GET /api/v1/admin/nodes?limit=1000 " + h.env.correlationID}, h.api.requests)

	h.vars["GPUAAS_API_TOKEN_FILE"] = path + ".none"
	require.Equal(t, schema.ExitUsage, h.run("node", "list", "--api-url", h.api.server.URL))
}

func TestTemporalConfig(t *testing.T) {
	t.Parallel()
	h := setup(t)
	require.Zero(t, h.run("stuck", "--direct", "--address", "temporal.example:7233", "--namespace", "gpus"))
	require.Equal(t, temporal.Config{Address: "temporal.example:7233", Namespace: "gpus", Secrets: []schema.Secret{schema.NewSecret(apiToken)}}, h.temporal.dialled)
}

func TestNodeHistory(t *testing.T) {
	t.Parallel()
	drain := lostDrain()
	drain.StartedAt, drain.EndedAt, drain.Status, drain.Outcome = start().Add(30*time.Second), at(4*time.Minute), lifecycle.OperationCanceled, "undone"
	drain.Reason = "RMA-4411"
	provision := drain
	provision.OperationID, provision.Action, provision.Status = "0198f000-0000-7000-8000-0000000000a0", lifecycle.ActionProvision, lifecycle.OperationRunning
	provision.StartedAt, provision.EndedAt, provision.Reason, provision.Outcome = start().Add(-time.Hour), nil, "", ""
	events := chain(nodeID, 5)
	events[0].Action, events[0].Reason = audit.ActionName(lifecycle.ActionRegister), ""
	events[3].Action, events[3].Target, events[3].OperationID = audit.TaskCancel, taskID, operationID
	events[4].Action = audit.NodeSet
	for name, args := range map[string][]string{"": nil, "-json": {"-o", "json", "--limit", "2"}, "-wide": {"-o", "wide", "--limit", "3", "--since", "24h"}} {
		t.Run("history"+name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			h.api.operations, h.api.audit = []wire.OperationSummary{drain, provision}, map[string][]audit.Event{nodeID: events}
			h.golden("node-history"+name, append([]string{"node", "history", "gpu-17"}, args...)...)
		})
	}
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		setup(t).golden("node-history-none", "node", "history", "gpu-17")
	})
	t.Run("an unknown node", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, schema.ExitNotFound, setup(t).run("node", "history", "gpu-99"))
	})
}
