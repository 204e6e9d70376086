package temporal

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/grpc/codes"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// componentWorker is the component of faults of gpuaas-worker.
const componentWorker = "worker"

// backlogAfter is the age of the oldest waiting task at which the workers count as too
// slow.
const backlogAfter = time.Minute

// queue is one type of tasks of the task queue.
type queue struct {
	tasks string // "workflow" or "activity"
	// builds are those of the workers that poll, in order; see Unversioned.
	builds []string
	stats  *taskqueuepb.TaskQueueStats
}

// workerFaults returns the faults of the task queue's workers.
func (p prober) workerFaults(ctx context.Context) ([]wire.ControlPlaneFault, error) {
	queues, err := p.queues(ctx)
	if err != nil {
		return nil, err
	}
	d, err := p.conn.sdk.WorkerDeploymentClient().GetHandle(Deployment).Describe(ctx, client.WorkerDeploymentDescribeOptions{})
	switch codeOf(err) {
	case codes.NotFound, codes.PermissionDenied, codes.Unimplemented, codes.FailedPrecondition:
		return queueFaults(queues), nil // no worker is versioned, or the server does not allow it
	}
	if err != nil {
		return queueFaults(queues), err
	}
	if faults := versionFaults(d.Info, queues[0].builds); len(faults) > 0 {
		return faults, nil
	}
	return queueFaults(queues), nil
}

// queues describes the task queue, for workflow tasks first.
func (p prober) queues(ctx context.Context) (queues []queue, err error) {
	for _, kind := range []enumspb.TaskQueueType{enumspb.TASK_QUEUE_TYPE_WORKFLOW, enumspb.TASK_QUEUE_TYPE_ACTIVITY} {
		d, err := p.conn.sdk.WorkflowService().DescribeTaskQueue(ctx, &workflowservice.DescribeTaskQueueRequest{Namespace: p.conn.namespace,
			TaskQueue: &taskqueuepb.TaskQueue{Name: lifecycle.TaskQueue}, TaskQueueType: kind, ReportStats: true})
		if err != nil {
			return nil, err
		}
		queues = append(queues, queue{strings.ToLower(kind.String()), buildsOf(d.GetPollers(), PollerFresh), d.GetStats()})
	}
	return queues, nil
}

// QueueStats is how many tasks of a kind wait for a worker, and the age of the oldest one.
type QueueStats struct {
	// Tasks is workflow or activity.
	Tasks   string
	Waiting int64
	Age     time.Duration
}

// Queue returns what waits in the task queue, as Temporal estimates it.
func (c *connection) Queue(ctx context.Context) (stats []QueueStats, err error) {
	ctx, cancel := context.WithTimeout(ctx, faultBudget)
	defer cancel()
	queues, err := prober{c}.queues(ctx)
	for _, q := range queues {
		stats = append(stats, QueueStats{Tasks: q.tasks, Waiting: q.stats.GetApproximateBacklogCount(), Age: q.stats.GetApproximateBacklogAge().AsDuration()})
	}
	return stats, c.interpret(err, "reading the task queue "+lifecycle.TaskQueue)
}

// queueFaults returns the faults of queues that no worker polls or whose oldest task
// waits too long.
func queueFaults(queues []queue) (faults []wire.ControlPlaneFault) {
	if !slices.ContainsFunc(queues, func(q queue) bool { return len(q.builds) > 0 }) {
		return []wire.ControlPlaneFault{noPollers("tasks", queues...)}
	}
	for _, q := range queues {
		age := q.stats.GetApproximateBacklogAge().AsDuration()
		switch {
		case len(q.builds) == 0:
			faults = append(faults, noPollers(q.tasks+" tasks", q))
		case age > backlogAfter:
			faults = append(faults, wire.ControlPlaneFault{Component: componentWorker, Reason: "backlog", Message: fmt.Sprintf(
				"the workers are too slow: %d %s tasks wait in the task queue %s, the oldest for %s",
				q.stats.GetApproximateBacklogCount(), q.tasks, lifecycle.TaskQueue, lifecycle.Span(age)),
				Next: "start more replicas of gpuaas-worker, or raise its task slots; its /metrics show which slots are in use"})
		}
	}
	return faults
}

func noPollers(tasks string, queues ...queue) wire.ControlPlaneFault {
	var waiting int64
	for _, q := range queues {
		waiting += q.stats.GetApproximateBacklogCount()
	}
	return wire.ControlPlaneFault{Component: componentWorker, Reason: "no_pollers", Message: fmt.Sprintf(
		"no gpuaas-worker polls the task queue %s for %s; tasks that wait: %d", lifecycle.TaskQueue, tasks, waiting),
		Next: "start a gpuaas-worker; if it runs, its /readyz and its log show why it does not poll"}
}

// versionFaults returns the fault of versioned workers: no version is current, or the
// current one has no worker. Open operations move to the current version, so an earlier one
// needs no worker. Without any worker there is no fault. builds are those of the workers
// that poll.
func versionFaults(d client.WorkerDeploymentInfo, builds []string) (faults []wire.ControlPlaneFault) {
	if len(builds) == 0 {
		return nil
	}
	current := d.RoutingConfig.CurrentVersion
	switch {
	case current == nil && !slices.Contains(builds, Unversioned):
		faults = append(faults, wire.ControlPlaneFault{Component: componentWorker, Reason: "no_current_version",
			Message: "no version of gpuaas-worker is the current one, so no operation starts or continues; versions that poll: " + versionNames(builds),
			Next:    promoteCommand(builds)})
	case current != nil && !slices.Contains(builds, current.BuildID):
		faults = append(faults, wire.ControlPlaneFault{Component: componentWorker, Reason: "version_without_workers",
			Message: fmt.Sprintf("no gpuaas-worker of the current %s polls, and all operations wait for it", VersionName(current.BuildID)),
			Next:    "start a gpuaas-worker of this version; to make another one the current: " + promoteCommand(builds)})
	}
	return faults
}

// promoteCommand makes the only version that polls the current one, or the one that an
// operator chooses.
func promoteCommand(builds []string) string {
	build := "VERSION"
	if len(builds) == 1 {
		build = builds[0]
	}
	return "gpuaas admin promote --to " + build
}
