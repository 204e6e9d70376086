package dev

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

// A stack with a part that does not run has its whole report and its own exit code.
func TestStatusOfAStoppedStack(t *testing.T) {
	t.Parallel()
	s := testStack(t)
	require.NoError(t, s.layout.save(s.record))
	var messages bytes.Buffer
	var printed report
	root := &cobra.Command{Use: "gpuaas", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(NewCommand(io.Discard, &messages, func(v any, text func(io.Writer)) error {
		printed = v.(report)
		text(t.Output())
		return nil
	}))
	root.SetArgs([]string{"dev", "status", "--dir", s.layout.dir})
	var ended *EndedError
	require.ErrorAs(t, root.ExecuteContext(t.Context()), &ended)
	require.Equal(t, schema.ExitUnreachable, ended.Code)
	require.NotEmpty(t, printed.Parts)
	require.Contains(t, messages.String(), "gpuaas dev up --dir")
}

// dev env api is the configuration with which dev up starts the API.
func TestEnvOfTheAPI(t *testing.T) {
	t.Parallel()
	s, bin := testStack(t), t.TempDir()
	s.programs.executable, s.programs.look = filepath.Join(bin, "gpuaas"), func(string) string { return "" }
	require.NotContains(t, s.apiVariables().object(), "GPUAAS_AGENT_ARCHIVE", "it was not built")
	for _, name := range []string{apiBinary, agentArchive} {
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), nil, 0o700))
	}
	printed, err := s.variablesOf(nil, []string{partAPI})
	require.NoError(t, err)
	require.Equal(t, filepath.Join(bin, agentArchive), printed.object()["GPUAAS_AGENT_ARCHIVE"])
	started, err := s.api().prepare(t.Context())
	require.NoError(t, err)
	require.Contains(t, started.env, "GPUAAS_AGENT_ARCHIVE="+filepath.Join(bin, agentArchive))
}
