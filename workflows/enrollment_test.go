package workflows

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// slowFirst returns the progress of an enrollment, for the first read as it was before the
// others and after they have returned.
type slowFirst struct {
	activities.Records
	first string // the ID of the first read's activity
	rest  chan struct{}
}

func (s *slowFirst) Enrollment(ctx context.Context, _ string) (activities.Enrollment, error) {
	if activity.GetInfo(ctx).ActivityID == s.first {
		<-s.rest
		return activities.Enrollment{BundleIssued: true}, nil
	}
	return activities.Enrollment{BundleIssued: true, TokenClaimed: true}, nil
}

// TestBundleReplacedBeforeThePoll: the agent claimed its token, and then a newer bundle
// replaced it. The agent cannot poll until it has the newer bundle, so the first option of
// the park is to issue one.
func TestBundleReplacedBeforeThePoll(t *testing.T) {
	t.Parallel()
	for name, replaced := range map[string]bool{"replaced": true, "not replaced": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(lifecycle.NodeRegistered)
			b := setup(t, lifecycle.ActionEnroll, w)
			b.signalAt(time.Second, lifecycle.EventTokenClaimed, 1)
			b.at(time.Minute, func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.progress = activities.Enrollment{Incarnation: 1, BundleIssued: true, TokenClaimed: !replaced}
			})
			b.at(time.Hour, func() {
				s := b.status().Operation.Stuck
				require.Equal(t, lifecycle.PhasePoll, s.Phase)
				options := []lifecycle.Decision{lifecycle.DecisionRetry, lifecycle.DecisionBootstrap, lifecycle.DecisionCancel}
				if replaced {
					options[0], options[1] = options[1], options[0]
					require.Equal(t, "gpuaas node bootstrap-script gpu-17", s.Next)
					require.Contains(t, s.Cause, "newer bundle")
				}
				for i, d := range options {
					require.Equal(t, d, s.Options[i].Decision)
				}
			})
			b.signalAt(2*time.Hour, lifecycle.EventFirstPoll, 1)
			require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
		})
	}
}

// TestEnrollmentKeepsTheNewestRead: two reads of the enrollment may overlap. The result of
// the older one does not replace that of the newer one.
func TestEnrollmentKeepsTheNewestRead(t *testing.T) {
	t.Parallel()
	s := &slowFirst{first: "1", rest: make(chan struct{})}
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestWorkflowEnvironment()
	env.RegisterActivity(&activities.Record{Records: s})
	env.ExecuteWorkflow(func(ctx workflow.Context) (activities.Enrollment, error) {
		b := inbox{state: &state{plan: lifecycle.Plan{Holds: true}}}
		var older error
		begun, done := false, false
		workflow.Go(ctx, func(ctx workflow.Context) {
			begun = true
			older = b.readEnrollment(ctx)
			done = true
		})
		if err := workflow.Await(ctx, func() bool { return begun }); err != nil {
			return b.enrolled, err
		}
		if err := b.readEnrollment(ctx); err != nil {
			return b.enrolled, err
		}
		close(s.rest)
		if err := workflow.Await(ctx, func() bool { return done }); err != nil {
			return b.enrolled, err
		}
		return b.enrolled, older
	})
	require.NoError(t, env.GetWorkflowError())
	var got activities.Enrollment
	require.NoError(t, env.GetWorkflowResult(&got))
	require.True(t, got.TokenClaimed, "the older read does not undo the progress")
}
