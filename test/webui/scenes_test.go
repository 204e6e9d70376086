package webui

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/activity/v1"
	"go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// A scene is an operation that parks for one reason.
type scene struct {
	host string
	// park makes an operation of the node park.
	park func(t *testing.T, host string)
	// slow parks the operation before all others, because that takes a minute.
	slow bool
	// flags are the flags with which gpuaas stuck lists the operation.
	flags []string
	// timer is the summary of a timer in the timeline, "" for the one of a park.
	timer string
	// details requires what the details of the run show; nil requires those of a parked run.
	details func(p *page, stuck lifecycle.Stuck)
	// resolve follows the page of the parked operation until the operation ends. nil
	// leaves it parked.
	resolve func(t *testing.T, p *page, op wire.StuckOperation)
}

// scenes lists the reasons whose pages are tested and shown in docs/on-call.md.
func scenes() map[string]scene { return merge(nodeScenes(), outageScenes()) }

// nodeScenes are those that concern one node. They run at the same time.
func nodeScenes() map[string]scene {
	return merge(operationScenes(), agentScenes(), abandonedScenes(), repairScenes())
}

func merge(parts ...map[string]scene) map[string]scene {
	all := map[string]scene{}
	for _, part := range parts {
		maps.Copy(all, part)
	}
	return all
}

// operationScenes are those of operations whose task or provider fails.
func operationScenes() map[string]scene {
	return map[string]scene{
		string(schema.KindAgentSilent):        {host: "gpu-01", park: parkSilent},
		lifecycle.ReasonProviderSilent:        {host: "gpu-02", park: parkProviderSilent},
		lifecycle.ReasonTimeout:               {host: "gpu-03", park: parkTimeout},
		lifecycle.ReasonDrainBlocked:          {host: "gpu-04", park: parkBlocked, resolve: resolveInDialog},
		lifecycle.ReasonProbeFailed:           {host: "gpu-05", park: parkUnhealthy, resolve: resolveByCommand},
		lifecycle.ReasonSKUMismatch:           {host: "gpu-06", park: parkMismatch},
		lifecycle.ReasonTaskLost:              {host: "gpu-07", park: parkLost},
		lifecycle.ReasonTaskCanceled:          {host: "gpu-08", park: parkTaskCanceled},
		lifecycle.ReasonResultMissing:         {host: "gpu-09", park: parkForged},
		string(schema.KindTaskFailed):         {host: "gpu-10", park: parkFailed},
		string(schema.KindTaskRefused):        {host: "gpu-11", park: parkRefused},
		string(schema.KindServiceUnavailable): {host: "gpu-12", park: parkUnavailable},
		lifecycle.ReasonRecordUnavailable: {host: "gpu-13", park: parkUnrecorded, slow: true, flags: []string{"--direct"},
			timer: "Show that the record waits for the database", resolve: resolveItself},
		string(schema.KindInvalidRequest): {host: "gpu-14", park: parkRejected},
		lifecycle.ReasonProviderUnknown:   {host: "gpu-15", park: parkProviderUnknown},
		string(schema.KindInternal):       {host: "gpu-16", park: parkInternal},
	}
}

// A task of a silent agent waits until the phase's budget ends.
func parkSilent(t *testing.T, host string) {
	t.Helper()
	stack.Enroll(t, host, "cpu-dev")
	killAgent(t, host)
	stack.Run(t, "node", "drain", host, "--yes", "--no-wait", "--reason", "RMA-4411")
	expire(t, host, "RunNodeTask")
}

func parkTimeout(t *testing.T, host string) {
	t.Helper()
	drainBusy(t, host)
	expire(t, host, "RunNodeTask")
}

// drainBusy starts the drain of a node whose workload does not end, and waits until the
// agent drains it.
func drainBusy(t *testing.T, host string) (taskID string) {
	t.Helper()
	stack.Enroll(t, host, "cpu-dev")
	stack.Occupy(t, host)
	stack.Run(t, "node", "drain", host, "--yes", "--no-wait", "--reason", "RMA-4411")
	stack.Eventually(t, host+" drains", func() bool {
		var list wire.TaskList
		if !stack.Read(t, &list, "task", "list", "--node", host) {
			return false
		}
		for _, task := range list.Tasks {
			if task.Type == "workload.drain" && task.LeaseUntil != nil {
				taskID = task.TaskID
				return true
			}
		}
		return false
	})
	return taskID
}

func parkBlocked(t *testing.T, host string) {
	t.Helper()
	stack.Enroll(t, host, "cpu-dev")
	stack.Occupy(t, host)
	drainSoon(t, host)
}

// drainSoon starts a drain that does not wait long.
func drainSoon(t *testing.T, host string) {
	t.Helper()
	stack.Run(t, "node", "drain", host, "--deadline", "2s", "--reason", "RMA-4411", "--yes", "--no-wait")
}

// nvidiaSMI writes the nvidia-smi of the node's agent, and returns its folder.
func nvidiaSMI(t *testing.T, host, script string) (dir string) {
	t.Helper()
	dir = filepath.Join(stack.Folder, host+".bin")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	return dir
}

// gpuNode starts a node whose nvidia-smi is a shell script.
func gpuNode(t *testing.T, host, script string) {
	t.Helper()
	stack.Enroll(t, host, "cpu-dev", "PATH="+nvidiaSMI(t, host, script)+":"+os.Getenv("PATH"))
}

const gpuLost = "echo 'Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost' >&2; exit 15"

// The GPU fails between the facts and the probe.
func parkUnhealthy(t *testing.T, host string) {
	t.Helper()
	gpuNode(t, host, `case $1 in --query-gpu=*) mkdir "$0.called" 2>/dev/null && exit 0; `+gpuLost+`;; esac`)
	stack.Run(t, "node", "provision", host, "--no-wait")
}

func parkFailed(t *testing.T, host string) {
	t.Helper()
	gpuNode(t, host, gpuLost)
	stack.Run(t, "node", "provision", host, "--no-wait")
}

func parkMismatch(t *testing.T, host string) {
	t.Helper()
	stack.Run(t, "sku", "add", "big", "--min-cpus", "512")
	stack.Enroll(t, host, "big")
	stack.Run(t, "node", "provision", host, "--no-wait")
}

// The node dies while it drains, so the effect of its task is unknown.
func parkLost(t *testing.T, host string) {
	t.Helper()
	taskID := drainBusy(t, host)
	killAgent(t, host)
	exec(t, "UPDATE node_tasks SET lease_until = now() - interval '1 minute' WHERE task_id = $1", taskID)
	handle := temporal.ScheduleClient().GetHandle(t.Context(), lifecycle.ScheduleReclaim)
	require.NoError(t, handle.Trigger(t.Context(), client.ScheduleTriggerOptions{}))
}

func parkTaskCanceled(t *testing.T, host string) {
	t.Helper()
	stack.Run(t, "task", "cancel", drainBusy(t, host), "--reason", "wrong node", "--yes")
}

// Someone completes the node's task in the Web UI each time that the operation waits for it.
func parkForged(t *testing.T, host string) {
	t.Helper()
	stack.Enroll(t, host, "cpu-dev")
	killAgent(t, host)
	stack.Run(t, "node", "drain", host, "--yes", "--no-wait")
	run := runOf(t, host)
	done := map[int64]bool{}
	stack.Eventually(t, "the task is completed by hand", func() bool {
		d, err := temporal.DescribeWorkflowExecution(t.Context(), run.GetWorkflowId(), "")
		require.NoError(t, err)
		for _, a := range d.GetPendingActivities() {
			began := a.GetLastStartedTime().AsTime().UnixNano()
			if a.GetActivityType().GetName() != "RunNodeTask" || a.GetLastStartedTime() == nil || done[began] {
				continue
			}
			if temporal.CompleteActivityByID(t.Context(), stack.Getenv("TEMPORAL_NAMESPACE"), run.GetWorkflowId(), "", a.GetActivityId(), nil, nil) == nil {
				done[began] = true
			}
		}
		return len(done) == 3
	})
}

// The signature of the node's task is destroyed in the database.
func parkRefused(t *testing.T, host string) {
	t.Helper()
	stack.Enroll(t, host, "cpu-dev")
	fault(t, host, "node_tasks", "INSERT",
		`NEW.envelope := convert_to(replace(convert_from(NEW.envelope, 'UTF8'), '"sig":"', '"sig":"AAAA'), 'UTF8');`)
	stack.Run(t, "node", "drain", host, "--yes", "--no-wait")
}

// provision starts a provision of the node whose writes to the resource ledger fail, as if
// the provider did.
func provision(t *testing.T, host, body string) {
	t.Helper()
	stack.Enroll(t, host, "cpu-dev")
	fault(t, host, "resources", "INSERT", body)
	stack.Run(t, "node", "provision", host, "--no-wait")
}

func parkProviderSilent(t *testing.T, host string) {
	t.Helper()
	provision(t, host, "PERFORM pg_sleep(20);")
	expire(t, host, "EnsureMachine")
}

func parkUnavailable(t *testing.T, host string) {
	t.Helper()
	provision(t, host, "RAISE EXCEPTION 'planted' USING ERRCODE = '53300';")
	endRetries(t, host, "EnsureMachine")
}

func parkRejected(t *testing.T, host string) {
	t.Helper()
	provision(t, host, "RAISE EXCEPTION 'planted' USING ERRCODE = '23514';")
}

func parkInternal(t *testing.T, host string) {
	t.Helper()
	provision(t, host, "RAISE EXCEPTION 'planted';")
	endRetries(t, host, "EnsureMachine")
}

func parkProviderUnknown(t *testing.T, host string) {
	t.Helper()
	stack.Enroll(t, host, "cpu-dev")
	exec(t, "UPDATE nodes SET onboarding_mode = 'metal' WHERE node_id = $1", stack.Node(t, host).ID)
	stack.Run(t, "node", "provision", host, "--no-wait")
}

// The database rejects the outcome of an operation.
func parkUnrecorded(t *testing.T, host string) {
	t.Helper()
	stack.Enroll(t, host, "cpu-dev")
	fault(t, host, "operations", "UPDATE", "IF NEW.status = 'completed' THEN RAISE EXCEPTION 'planted' USING ERRCODE = '53300'; END IF;")
	stack.Run(t, "node", "drain", host, "--yes", "--no-wait", "--reason", "RMA-4411")
}

// ended waits until the node's newest operation is completed.
func ended(t *testing.T, host string) {
	t.Helper()
	stack.Eventually(t, "the operation of "+host+" ends", func() bool {
		var op wire.OperationView
		return stack.Read(t, &op, "op", "show", host) && op.Operation.Status == lifecycle.OperationCompleted
	})
}

// resolveInDialog ends the workload and sends the displayed input of the resolve update in
// the dialog of the page.
func resolveInDialog(t *testing.T, p *page, op wire.StuckOperation) {
	t.Helper()
	input := p.find(`\{"operation_id":[^\n]*\}`)
	stack.EndWorkload(t, op.Host)
	p.update(strings.NewReplacer(lifecycle.ReasonPlaceholder, "the job may end now", "YOUR NAME", "alice").Replace(input))
	ended(t, op.Host)
	require.Contains(t, stack.Run(t, "audit", "--node", op.Host), "alice")
}

// resolveByCommand repairs the GPU and types the first displayed command.
func resolveByCommand(t *testing.T, p *page, op wire.StuckOperation) {
	t.Helper()
	command := p.find(`gpuaas op retry \S+ --operation \S+ --phase \S+ --stuck-since \S+ --reason TEXT`)
	nvidiaSMI(t, op.Host, "exit 0")
	words := strings.Fields(strings.Replace(command, lifecycle.ReasonPlaceholder, "repaired", 1))
	stack.Run(t, words[1:]...)
	ended(t, op.Host)
}

// resolveItself removes the fault. The operation continues without a decision, here without
// the pause of up to 30 seconds before the next write.
func resolveItself(t *testing.T, _ *page, op wire.StuckOperation) {
	t.Helper()
	change(t, op.Host, "", "retry_policy.maximum_interval", &activity.ActivityOptions{
		RetryPolicy: &common.RetryPolicy{MaximumInterval: durationpb.New(time.Second)}})
	heal(t, op.Host)
	ended(t, op.Host)
}
