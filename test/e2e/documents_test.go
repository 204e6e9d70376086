package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// blocks returns the command lines of a section that the reader types, a text
// for each block without a language.
func blocks(t *testing.T, document, heading string) (out []string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", document))
	require.NoError(t, err)
	_, section, found := strings.Cut("\n"+string(raw), "\n"+heading+"\n")
	require.True(t, found, "%s has no section %q", document, heading)
	level, _, _ := strings.Cut(heading, " ")
	if end := regexp.MustCompile(`(?m)^#{1,` + fmt.Sprint(len(level)) + `} `).FindStringIndex(section); end != nil {
		section = section[:end[0]]
	}
	open := false
	for line := range strings.Lines(section) {
		switch fence := strings.HasPrefix(line, "```"); {
		case fence && !open && line == "```\n":
			out = append(out, "")
			open = true
		case fence && !open: // in a language, for example a diagram
			out, open = append(out, line), true
		case fence:
			open = false
		case open:
			out[len(out)-1] += line
		}
	}
	return slices.DeleteFunc(out, func(b string) bool { return strings.HasPrefix(b, "```") })
}

// terminal is where an operator types the commands of the documents: a folder, the gpuaas
// command, and an ssh and an scp that reach the test's machines.
type terminal struct {
	t        *testing.T
	dir      string
	machines map[string]*systemdMachine
}

func newTerminal(t *testing.T, machines ...*systemdMachine) *terminal {
	t.Helper()
	d := &terminal{t: t, dir: t.TempDir(), machines: map[string]*systemdMachine{}}
	for _, m := range machines {
		d.machines[m.host] = m
	}
	require.NoError(t, os.MkdirAll(filepath.Join(d.dir, "bin"), 0o700))
	enter := "case $to in\n"
	for host, m := range d.machines {
		enter += host + ") set -- " + strings.Join(m.enter(), " ") + " \"cd /root; $command\" ;;\n"
	}
	enter += "*) echo \"no machine $to\" >&2; exit 255 ;;\nesac\n"
	for name, script := range map[string]string{
		"ssh": "to=${1#root@}; shift; command=$*\n" + enter + "exec \"$@\"\n",
		"scp": `for last; do :; done
to=${last#root@}; to=${to%:}
while [ "$#" -gt 1 ]; do "$(dirname "$0")/ssh" "root@$to" "cat > '$1'" < "$1"; shift; done
`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(d.dir, "bin", name), []byte("#!/bin/sh\nset -e\n"+script), 0o700))
	}
	return d
}

// typed runs command lines as they stand in a document, with other host names: names has the
// document's and the test's in turn. It returns what was printed, and how it ended.
func (d *terminal) typed(lines string, names ...string) (printed string, err error) {
	d.t.Helper()
	out, err := d.command(lines, names...).CombinedOutput()
	return string(out), err
}

// command prepares the shell that typed runs.
func (d *terminal) command(lines string, names ...string) *exec.Cmd {
	c := exec.Command("bash", "-e", "-o", "pipefail", "-c", strings.NewReplacer(names...).Replace(lines))
	c.Dir = d.dir
	c.Env = append(append(os.Environ(), shared.Env...),
		"PATH="+filepath.Join(d.dir, "bin")+":"+filepath.Dir(shared.Bin)+":"+os.Getenv("PATH"))
	return c
}

// types requires that the lines succeed.
func (d *terminal) types(lines string, names ...string) string {
	d.t.Helper()
	out, err := d.typed(lines, names...)
	require.NoError(d.t, err, "%s\n%s", lines, out)
	return out
}

// waitFor waits until a node has the state.
func waitFor(t *testing.T, node string, state lifecycle.NodeState) wire.NodeView {
	t.Helper()
	var n wire.NodeView
	eventually(t, node+" is "+string(state), func() bool { n = show(t, node); return n.State == state })
	return n
}

// parkedFor waits until the node's operation is parked for the reason.
func parkedFor(t *testing.T, node, reason string) lifecycle.Stuck {
	t.Helper()
	var stuck *lifecycle.Stuck
	eventually(t, node+" is parked for "+reason, func() bool {
		stuck = decode[lifecycle.OperationStatus](t, ok(t, "op", "show", node, "-o", "json")).Operation.Stuck
		return stuck != nil && stuck.Reason == reason
	})
	return *stuck
}

// TestReadmeOnABusyGPUHost types the README's block for a real machine against a host with
// eight GPUs and a real systemd, on which a unit and a stray process use the GPUs. A node that
// is in use can be neither retired nor drained by mistake.
func TestReadmeOnABusyGPUHost(t *testing.T) {
	t.Parallel()
	m := newSystemdMachine(t, host(t, "readme"))
	m.fakeGPUs()
	d := newTerminal(t, m)
	all := blocks(t, "README.md", "## A real machine")
	require.Len(t, all, 1)
	lines := strings.SplitAfter(strings.TrimRight(all[0], "\n"), "\n")
	require.Len(t, lines, 4)
	d.types(strings.Join(lines[:3], ""), "gpu-18", m.host)

	n := waitFor(t, m.host, lifecycle.NodeActive)
	require.Equal(t, 8, n.GPUsTotal, "the SKU's")
	require.Equal(t, "systemd", n.WorkloadDriver, "the SKU's")
	require.Contains(t, m.do("cat /etc/gpuaas/node-agent.env"), `GPUAAS_WORKLOAD_DRIVER="systemd"`)
	eventually(t, "the agent reports its driver", func() bool { return show(t, m.host).Driver == "systemd" })

	stray := m.train()
	process := "pid " + stray + " /opt/notebook"
	eventually(t, "the agent reports the unit and the process", func() bool {
		kinds := map[string]string{}
		for _, w := range show(t, m.host).Workloads {
			kinds[w.Name] = w.Kind
		}
		return kinds["training.service"] == "systemd" && kinds[process] == task.KindGPUProcess
	})
	plan := run(t, "node", "drain", m.host, "--dry-run").stdout
	require.Contains(t, plan, "training.service")
	require.Contains(t, plan, process)
	refused := run(t, "node", "retire", m.host, "--yes", "-o", "json")
	require.Equal(t, schema.ExitRefused, refused.code)
	require.Equal(t, schema.KindNodeInUse, decode[schema.ErrorBody](t, refused).Error.Code)
	require.Contains(t, decode[schema.ErrorBody](t, refused).Error.Message, process)

	drain := run(t, "node", "drain", m.host, "--deadline", "5s", "--yes", "--reason", "RMA-4411")
	require.Equal(t, schema.ExitPending, drain.code, drain.stderr)
	require.Equal(t, "inactive", strings.TrimSpace(m.try("systemctl is-active training")), "systemd stopped the unit")
	stuck := parkedFor(t, m.host, lifecycle.ReasonGPUsInUse)
	require.Contains(t, stuck.Message, process)
	require.NotContains(t, stuck.Message, "training")
	m.do("systemctl stop stray")
	d.types(strings.Replace(stuck.Command(lifecycle.DecisionRetry, lifecycle.ActionDrain, m.host, ""), lifecycle.ReasonPlaceholder, "'it ended'", 1))
	waitFor(t, m.host, lifecycle.NodeDrained)
	require.Empty(t, show(t, m.host).Workloads)

	// The identity is lost and reissued. The renamed keys do not outlive the node.
	d.types(lines[3], "gpu-18", m.host)
	ok(t, "op", "watch", m.host, "--reissue")
	require.NotEmpty(t, m.do("ls -d /etc/gpuaas/*.stale-* /var/lib/gpuaas/node-agent/*.stale-*"))
	act(t, "node", "retire", m.host, "--yes")
	act(t, "node", "remove", m.host, "--yes")
	eventually(t, "the agent wipes its keys", func() bool {
		return strings.TrimSpace(m.try("ls -d /etc/gpuaas/key.pem* /etc/gpuaas/cert.pem* /var/lib/gpuaas/node-agent/*.stale-* 2>/dev/null")) == ""
	})
}

// TestForcedDrainOfABusyGPUHost: force continues in spite of a process that no driver stops,
// which keeps running. The audit trail names who forced it and why.
func TestForcedDrainOfABusyGPUHost(t *testing.T) {
	m := newSystemdMachine(t, host(t, "forced"))
	m.fakeGPUs()
	d := newTerminal(t, m)
	d.types("gpuaas node register gpu --sku h100 --region fra1 --probe\ngpuaas node bootstrap-script gpu | ssh root@gpu sh\ngpuaas op watch gpu", "gpu ", m.host+" ", "gpu\n", m.host+"\n", "watch gpu", "watch "+m.host)
	done := decode[wire.OperationList](t, ok(t, "op", "list", "--node", m.host, "-o", "json"))
	require.Len(t, done.Operations, 1)
	phases := decode[lifecycle.OperationStatus](t, ok(t, "op", "show", done.Operations[0].OperationID, "-o", "json")).Operation.Phases
	require.True(t, slices.ContainsFunc(phases, func(p lifecycle.Phase) bool {
		return p.Name == lifecycle.PhaseProbe && p.State == lifecycle.PhaseCompleted
	}), "the registration asked for a probe")

	stray := m.train()
	require.Equal(t, schema.ExitPending, run(t, "node", "drain", m.host, "--deadline", "2s", "--yes").code)
	parkedFor(t, m.host, lifecycle.ReasonGPUsInUse)
	ok(t, "op", "force", m.host, "--reason", "the notebook does not matter", "--yes")
	n := waitFor(t, m.host, lifecycle.NodeDrained)
	require.DirExists(t, fmt.Sprintf("/proc/%d/root/proc/%s", m.pid, stray), "the process runs on")
	require.True(t, slices.ContainsFunc(n.Workloads, func(w task.Workload) bool { return w.Kind == task.KindGPUProcess }))
	events := decode[struct{ Events []audit.Event }](t, ok(t, "audit", "--node", m.host, "-o", "json")).Events
	require.True(t, slices.ContainsFunc(events, func(e audit.Event) bool { return e.Reason == "the notebook does not matter" }))
}

// TestNodeWithoutADriver: a wrong number of GPUs and a missing workload driver park, and the
// next step of the operator ends each.
func TestNodeWithoutADriver(t *testing.T) {
	t.Parallel()
	m := newSystemdMachine(t, host(t, "bare"))
	m.fakeGPUs()
	d := newTerminal(t, m)
	sku := "lab-" + schema.NewID()[24:]
	ok(t, "sku", "add", sku, "--gpu-model", "H100", "--max-gpus", "8", "--min-cpus", "1")
	ok(t, "node", "register", m.host, "--sku", sku, "--region", "fra1", "--gpus", "4")
	d.types("gpuaas node bootstrap-script HOST | ssh root@HOST sh", "HOST", m.host)
	waitFor(t, m.host, lifecycle.NodeActive)

	require.Equal(t, schema.ExitPending, run(t, "node", "provision", m.host).code)
	stuck := parkedFor(t, m.host, lifecycle.ReasonSKUMismatch)
	require.Contains(t, stuck.Message, "8 GPUs found, 4 registered")
	ok(t, "node", "set", m.host, "--gpus", "8", "--reason", "counted again")
	ok(t, "op", "retry", m.host, "--reason", "corrected")
	eventually(t, "provisioned", func() bool { i := show(t, m.host).Instance; return i != nil && i.State == lifecycle.InstanceRunning })

	require.Contains(t, ok(t, "node", "show", m.host).stdout, "no workload driver is configured")
	drain := run(t, "node", "drain", m.host, "--yes", "--reason", "RMA-4411")
	require.Equal(t, schema.ExitPending, drain.code, drain.stderr)
	stuck = parkedFor(t, m.host, lifecycle.ReasonWorkloadsUnknown)
	require.Contains(t, stuck.Cause, "GPUAAS_WORKLOAD_DRIVER")
	m.do("echo GPUAAS_WORKLOAD_DRIVER=none >> /etc/gpuaas/node-agent.env; systemctl restart gpuaas-node-agent")
	eventually(t, "the agent reports its driver", func() bool { return show(t, m.host).Driver == "none" })
	ok(t, "op", "retry", m.host, "--reason", "it runs nothing")
	waitFor(t, m.host, lifecycle.NodeDrained)
}
