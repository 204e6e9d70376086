package dev

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/deploy/dev/internal/statefile"
	"github.com/gpuaas/gpuaas/schema"
)

// A server that was just started may not respond in time on a busy machine.
func TestSetupIsRepeatedWhileUnreachable(t *testing.T) {
	for name, c := range map[string]struct{ code, runs int }{"unreachable": {schema.ExitUnreachable, 3}, "refused": {schema.ExitRefused, 1}} {
		t.Run(name, func(t *testing.T) {
			s := testStack(t)
			require.NoError(t, statefile.WriteJSON(s.layout.vaultKeys(), vaultKeys{RootToken: "t"}))
			s.programs.executable = filepath.Join(t.TempDir(), "gpuaas")
			runs := filepath.Join(t.TempDir(), "runs")
			script := "#!/bin/sh\necho >> " + runs + "\n[ $(wc -l < " + runs + ") = 3 ] || exit " + strconv.Itoa(c.code) + "\n"
			require.NoError(t, os.WriteFile(s.programs.executable, []byte(script), 0o700))
			err := s.setup(t.Context())
			require.Equal(t, c.code == schema.ExitUnreachable, err == nil, "%v", err)
			require.EqualValues(t, c.runs, size(runs))
		})
	}
}
