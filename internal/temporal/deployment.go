package temporal

import (
	"context"
	"slices"
	"strings"
	"time"

	deploymentpb "go.temporal.io/api/deployment/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// Deployment is the name of the worker deployment. Its versions are the builds of
// gpuaas-worker.
const Deployment = "gpuaas"

// Unversioned is the build ID of workers without versioning.
const Unversioned = ""

// PollerFresh is how recent the last poll of a live worker is. A poll lasts at most
// a minute (the server's matching.longPollExpirationInterval).
const PollerFresh = 90 * time.Second

// Versioned returns the deployment options of a worker with this build ID. Open runs
// continue on the current version (AutoUpgrade).
func Versioned(build string) worker.DeploymentOptions {
	return worker.DeploymentOptions{
		UseVersioning: true, Version: worker.WorkerDeploymentVersion{DeploymentName: Deployment, BuildID: build},
		DefaultVersioningBehavior: workflow.VersioningBehaviorAutoUpgrade,
	}
}

// Deployments reads and changes which build of the worker receives work.
type Deployments struct{ *connection }

// Routing is the distribution of workflow tasks to builds.
type Routing struct {
	// Current is the build that receives workflow tasks, of new and of open
	// operations. It may be Unversioned.
	Current string
	// Ramping is the build that receives a share of them, "" for none.
	Ramping string
	// Polling are the builds that have a worker, in order.
	Polling []string
	// Served are the builds that were current before. A build that takes over from one of
	// them, and was current before it, would replay the histories of a newer build.
	Served []string
}

// MayTakeOver reports whether a build may become current without a person: the current
// build has no worker left, and the build has not been current before. Only a promotion
// makes an earlier build current again.
func (r Routing) MayTakeOver(build string) bool {
	return !r.Receives(build) && !r.Polls(r.Current) && !slices.Contains(r.Served, build)
}

// Polls reports whether a build has a worker.
func (r Routing) Polls(build string) bool { return slices.Contains(r.Polling, build) }

// Receives reports whether a build receives workflow tasks.
func (r Routing) Receives(build string) bool {
	return r.Current == build || build != Unversioned && r.Ramping == build
}

// Routing reads the routing of the workers' task queue. Builds whose last poll is older
// than fresh count as not polling. It reads the state of the queue's root partition,
// which an idle partition forwards its polls to.
func (c Deployments) Routing(ctx context.Context, fresh time.Duration) (Routing, error) {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	queue, err := c.sdk.WorkflowService().DescribeTaskQueue(ctx, &workflowservice.DescribeTaskQueueRequest{
		Namespace: c.namespace, TaskQueueType: enumspb.TASK_QUEUE_TYPE_WORKFLOW,
		TaskQueue: &taskqueuepb.TaskQueue{Name: lifecycle.TaskQueue, Kind: enumspb.TASK_QUEUE_KIND_NORMAL},
	})
	if err != nil {
		return Routing{}, c.interpret(err, "reading the versions of the workers")
	}
	info := queue.GetVersioningInfo()
	r := Routing{Current: buildOf(info.GetCurrentDeploymentVersion()), Ramping: buildOf(info.GetRampingDeploymentVersion())}
	r.Polling = buildsOf(queue.GetPollers(), fresh)
	if r.Current == Unversioned || r.Polls(r.Current) {
		return r, nil // it has workers, or no version was current before
	}
	r.Served, err = c.served(ctx)
	return r, err
}

// served returns the builds that were current before and are no longer.
func (c Deployments) served(ctx context.Context) (builds []string, err error) {
	d, err := c.sdk.WorkerDeploymentClient().GetHandle(Deployment).Describe(ctx, client.WorkerDeploymentDescribeOptions{})
	if err != nil {
		return nil, c.interpret(err, "reading the versions of the workers")
	}
	for _, v := range d.Info.VersionSummaries {
		if s := v.DrainageStatus; s == client.WorkerDeploymentVersionDrainageStatusDraining || s == client.WorkerDeploymentVersionDrainageStatusDrained {
			builds = append(builds, v.Version.BuildID)
		}
	}
	return builds, nil
}

// buildsOf returns the builds of the workers that polled within fresh, in order.
func buildsOf(pollers []*taskqueuepb.PollerInfo, fresh time.Duration) (builds []string) {
	for _, w := range pollers {
		if time.Since(w.GetLastAccessTime().AsTime()) > fresh {
			continue
		}
		build := Unversioned
		if o := w.GetDeploymentOptions(); o.GetWorkerVersioningMode() == enumspb.WORKER_VERSIONING_MODE_VERSIONED {
			build = o.GetBuildId()
		}
		builds = append(builds, build)
	}
	slices.Sort(builds)
	return slices.Compact(builds)
}

func buildOf(v *deploymentpb.WorkerDeploymentVersion) string { return v.GetBuildId() }

// Promote makes a build of the worker current and returns the build that was current
// before. The current build receives the workflow tasks of new and of open operations.
// KindInvalidRequest with reason version_not_polling when the build has no worker.
func (c Deployments) Promote(ctx context.Context, build string) (before string, err error) {
	r, err := c.Routing(ctx, PollerFresh)
	if err != nil {
		return "", err
	}
	if r.Current == build {
		return build, nil
	}
	if !r.Polls(build) {
		return r.Current, schema.NewError(schema.KindInvalidRequest, "no worker of %s polls Temporal; workers of these versions do: %s",
			VersionName(build), versionNames(r.Polling)).WithReason("version_not_polling").
			WithNext("start a gpuaas-worker of this version, or promote one of the others")
	}
	return r.Current, c.setCurrent(ctx, build, false)
}

// TakeOver makes a build of the worker current, for its own worker when no worker of
// the current build is left.
func (c Deployments) TakeOver(ctx context.Context, build string) error {
	return c.setCurrent(ctx, build, true)
}

// setCurrent makes a build current. Unless force is set, Temporal rejects a build whose
// workers do not poll every task queue of the current one.
func (c Deployments) setCurrent(ctx context.Context, build string, force bool) error {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	_, err := c.sdk.WorkerDeploymentClient().GetHandle(Deployment).SetCurrentVersion(ctx,
		client.WorkerDeploymentSetCurrentVersionOptions{BuildID: build, IgnoreMissingTaskQueues: force})
	if is[*serviceerror.NotFound](err) || is[*serviceerror.FailedPrecondition](err) {
		return schema.Wrap(schema.KindServiceUnavailable, err, "Temporal does not accept %s as the current version", VersionName(build)).
			WithReason("version_not_accepted").WithNext("run the command again in a few seconds, when the workers of the version poll every task queue")
	}
	return c.interpret(err, "setting the current version of the workers")
}

// VersionName names a build in messages.
func VersionName(build string) string {
	if build == Unversioned {
		return "unversioned workers"
	}
	return "version " + build
}

func versionNames(builds []string) string {
	names := make([]string, len(builds))
	for i, b := range builds {
		if names[i] = b; b == Unversioned {
			names[i] = "(unversioned)"
		}
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
