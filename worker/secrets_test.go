package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	sdkactivity "go.temporal.io/sdk/activity"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"

	"github.com/gpuaas/gpuaas/schema/trust"
)

// TestWorkerKeepsBackRawErrors runs an activity with the worker's own options.
func TestWorkerKeepsBackRawErrors(t *testing.T) {
	t.Parallel()
	secret, _, _ := trust.NewToken()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestActivityEnvironment()
	env.SetWorkerOptions(options(make(chan error, 1)))
	env.RegisterActivityWithOptions(func(context.Context) error { return errors.New("refused " + secret) },
		sdkactivity.RegisterOptions{Name: "leaks"})
	_, err := env.ExecuteActivity("leaks")
	require.ErrorContains(t, err, "internal error")
	require.NotContains(t, fmt.Sprintf("%+v", err), secret)
}

func TestSecretsOfTheConfiguration(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "secret-id")
	require.NoError(t, os.WriteFile(file, []byte("0f9a-secret-id\n"), 0o600))
	var got []string
	for _, s := range (Config{DatabaseURL: "postgres://gpuaas:pa%2Fss@localhost/gpuaas", SecretIDFile: file}).secrets() {
		got = append(got, s.Reveal())
	}
	require.Equal(t, []string{"pa/ss", "0f9a-secret-id"}, got)
	require.Empty(t, Config{DatabaseURL: "host=/run/postgresql"}.secrets())
}
