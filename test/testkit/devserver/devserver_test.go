package devserver_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/testkit/devserver"
)

func TestMissingProgram(t *testing.T) {
	t.Parallel()
	_, err := devserver.Find("gpuaas-dev-nothing")
	require.EqualError(t, err, "bin/gpuaas-dev-nothing is missing; build it with: ./task build:dev-nothing")
}

func TestStartAndStop(t *testing.T) {
	t.Parallel()
	p, said, err := devserver.Start(time.Minute, "ready: ", "/bin/sh", "-c", "echo first >&2; echo x ready: here >&2; exec sleep 600")
	require.NoError(t, err)
	require.Equal(t, "here", said)
	require.True(t, p.Running())
	require.NoError(t, p.Stop())
	require.False(t, p.Running())
	require.NoError(t, p.Stop())
}

func TestFailedStartReportsOutput(t *testing.T) {
	t.Parallel()
	_, _, err := devserver.Start(time.Minute, "ready: ", "/bin/sh", "-c", "echo no port >&2")
	require.ErrorContains(t, err, "exited during startup: no port")
}
