package workflows

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"
)

// TestFailureNamesItsActivity: an operation that parks for an error without a type names the activity and
// the class of the error, and not its text.
func TestFailureNamesItsActivity(t *testing.T) {
	t.Parallel()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestWorkflowEnvironment()
	env.RegisterActivityWithOptions(func(context.Context) error {
		return temporal.NewNonRetryableApplicationError("password=hunter2", "BrokenPipe", nil)
	}, activity.RegisterOptions{Name: "DoThings"})
	env.ExecuteWorkflow(func(ctx workflow.Context) (string, error) {
		ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
		return failureOf(workflow.ExecuteActivity(ctx, "DoThings").Get(ctx, nil)).Message, nil
	})
	var message string
	require.NoError(t, env.GetWorkflowResult(&message))
	require.Equal(t, "unexpected failure of the activity DoThings: BrokenPipe", message)
}
