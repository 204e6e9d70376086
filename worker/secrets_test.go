package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	sdkactivity "go.temporal.io/sdk/activity"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"

	"github.com/gpuaas/gpuaas/schema/trust"
)

// TestWorkerHidesRawErrors runs an activity with the worker's own options.
func TestWorkerHidesRawErrors(t *testing.T) {
	t.Parallel()
	secret, _, _ := trust.NewToken()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestActivityEnvironment()
	env.SetWorkerOptions(options(defaults(), 10, make(chan error, 1)))
	env.RegisterActivityWithOptions(func(context.Context) error { return errors.New("refused " + secret) },
		sdkactivity.RegisterOptions{Name: "leaks"})
	_, err := env.ExecuteActivity("leaks")
	require.ErrorContains(t, err, "internal error")
	require.NotContains(t, fmt.Sprintf("%+v", err), secret)
}
