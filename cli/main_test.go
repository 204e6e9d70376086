package cli

import (
	"bytes"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

// closedPort is an address without a listener.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// A command that is in a group is suggested, unless many groups have it.
func TestCommandWithoutItsGroup(t *testing.T) {
	t.Parallel()
	h := setup(t)
	require.Equal(t, schema.ExitUsage, h.run("drain", "gpu-17"))
	require.Contains(t, h.err.String(), `unknown command "drain" for "gpuaas"; did you mean node drain?`)
	require.Equal(t, schema.ExitUsage, h.run("node", "cordon", "gpu-17"))
	require.Contains(t, h.err.String(), `unknown command "cordon" for "gpuaas node"; did you mean drain?`)
	require.NotContains(t, h.err.String(), "uncordon")
	require.Equal(t, schema.ExitUsage, h.run("list"))
	require.NotContains(t, h.err.String(), "did you mean")
}

// TestMainReal runs the real command against ports without a listener.
func TestMainReal(t *testing.T) {
	t.Parallel()
	temporal, api := closedPort(t), closedPort(t)
	for name, tc := range map[string]struct {
		args []string
		code int
		says []string
	}{
		"help":    {nil, schema.ExitDone, nil},
		"usage":   {[]string{"nope"}, schema.ExitUsage, []string{"unknown command"}},
		"start":   {[]string{"node", "provision", nodeID}, schema.ExitUnreachable, []string{api, "gpuaas dev status"}},
		"decide":  {[]string{"--direct", "op", "retry", nodeID, "--reason", "TCK-99"}, schema.ExitUnreachable, []string{temporal}},
		"by name": {[]string{"node", "provision", "gpu-17", "--direct"}, schema.ExitUnreachable, []string{temporal}},
		"stuck":   {[]string{"stuck"}, schema.ExitUnreachable, []string{api}},
		"read":    {[]string{"node", "list"}, schema.ExitUnreachable, []string{api}},
		"setup":   {[]string{"admin", "setup"}, schema.ExitFailed, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, errOut bytes.Buffer
			args := slices.Concat(tc.args, []string{"--address", temporal, "--api-url", "http://" + api})
			code := Main(t.Context(), Platform{}, args, Stdio{In: strings.NewReader(""), Out: &out, Err: &errOut})
			require.Equal(t, tc.code, code, errOut.String())
			for _, s := range tc.says {
				require.Contains(t, errOut.String(), s)
			}
			require.Equal(t, code != schema.ExitDone, out.Len() == 0)
		})
	}
}
