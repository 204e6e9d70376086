package workflows

import (
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/rotation"
)

const (
	// rotationPause is the time between two looks at a rotation that waits.
	rotationPause = 30 * time.Second
	// rotationLooks is the number of looks of one run, which bounds its history.
	rotationLooks = 200
)

// MaintainTrust is a run of the schedule that renews the verifier set.
func MaintainTrust(ctx workflow.Context) (m activities.Maintenance, err error) {
	err = workflow.ExecuteActivity(onTrustQueue(ctx, "Renew the verifier set if it is due"), keys.MaintainTrust).Get(ctx, &m)
	return m, err
}

// RotateKeys drives the open rotation until it ends. The database has its record, and each
// activity makes at most one change, so the run holds nothing: another run may continue the
// rotation at any time.
func RotateKeys(ctx workflow.Context) (last activities.RotationStatus, err error) {
	changed := workflow.GetSignalChannel(ctx, lifecycle.SignalRotation)
	for range rotationLooks {
		for changed.ReceiveAsync(nil) { // the look that follows sees the change
		}
		var s activities.RotationStatus
		err := workflow.ExecuteActivity(onTrustQueue(ctx, "Make the next change of the rotation"), keys.AdvanceRotation).Get(ctx, &s)
		switch {
		case ctx.Err() != nil:
			return last, ctx.Err()
		case err == nil && !s.Open && changed.Len() == 0:
			return last, nil
		case err == nil && s.Open:
			last = s
		}
		workflow.SetCurrentDetails(ctx, rotationText(last, err))
		if err == nil && s.Again {
			continue
		}
		if err := awaitChange(ctx, changed); err != nil {
			return last, err
		}
	}
	return last, workflow.NewContinueAsNewError(ctx, lifecycle.WorkflowRotation)
}

// awaitChange waits for a decision about the rotation, at most rotationPause.
func awaitChange(ctx workflow.Context, changed workflow.ReceiveChannel) error {
	_, err := workflow.AwaitWithOptions(ctx, workflow.AwaitOptions{Timeout: rotationPause,
		TimerOptions: workflow.TimerOptions{Summary: "Wait for nodes or a decision"}}, func() bool { return changed.Len() > 0 })
	return err
}

func onTrustQueue(ctx workflow.Context, summary string) workflow.Context {
	o := callRound
	o.TaskQueue, o.HeartbeatTimeout = lifecycle.TrustQueue, 0
	return remote(ctx, o, 0, summary)
}

// rotationText describes a rotation for the run's page in the Web UI.
func rotationText(s activities.RotationStatus, failure error) string {
	r := s.Rotation
	var b strings.Builder
	fmt.Fprintf(&b, "### Rotation of %s: phase %s\n\n%s.\n\n", r.Kind, r.Phase, r.Spec().Does)
	p := s.Progress
	if r.Kind == rotation.NodeCA {
		fmt.Fprintf(&b, "The phase is confirmed by %d of %d nodes, %d waived.", p.Confirmed, p.Nodes, p.Waived)
		if r.Spec().Reload {
			fmt.Fprintf(&b, " %d of %d replicas of the API accept its CAs.", p.Reloaded, p.Replicas)
		}
		b.WriteString("\n")
	} else {
		fmt.Fprintf(&b, "Set %d is confirmed by %d of %d nodes, %d waived. Open tasks of the replaced key: %d.\n",
			r.SetVersion, p.Confirmed, p.Nodes, p.Waived, p.OpenTasks)
	}
	for _, why := range s.Blockers {
		fmt.Fprintf(&b, "\n- waiting on: `%s`", why)
	}
	for _, n := range p.Waiting {
		fmt.Fprintf(&b, "\n- %s (%s, %s)", shownName(n.Host), n.State, shown(r.Reported(n)))
	}
	if failure != nil {
		fmt.Fprintf(&b, "\nLast failure: %s\n", shown(failureOf(failure).Message))
	}
	return b.String() + "\n\nDecide with `gpuaas rotate --help`.\n"
}
