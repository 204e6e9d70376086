package dev

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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
			runs := failsTwice(t, s, c.code)
			err := s.setup(t.Context())
			require.Equal(t, c.code == schema.ExitUnreachable, err == nil, "%v", err)
			require.EqualValues(t, c.runs, size(runs))
		})
	}
}

// failsTwice replaces gpuaas with a program that exits with a code in its first two runs.
// It adds a line to the file runs in each run.
func failsTwice(t *testing.T, s *stack, code int) (runs string) {
	t.Helper()
	s.programs.executable = filepath.Join(t.TempDir(), "gpuaas")
	runs = filepath.Join(t.TempDir(), "runs")
	script := "#!/bin/sh\necho >> " + runs + "\n[ $(wc -l < " + runs + ") = 3 ] || exit " + strconv.Itoa(code) + "\n"
	require.NoError(t, os.WriteFile(s.programs.executable, []byte(script), 0o700))
	return runs
}

// The version of a worker that was just started is promoted when the worker polls. A
// failure is a warning: the worker takes over later.
func TestPromoteAfterTheStart(t *testing.T) {
	for name, c := range map[string]struct{ code, runs int }{"it does not poll yet": {schema.ExitRefused, 3}, "unreachable": {schema.ExitUnreachable, 1}} {
		t.Run(name, func(t *testing.T) {
			s := testStack(t)
			messages := &bytes.Buffer{}
			s.messages = messages
			runs := failsTwice(t, s, c.code)
			s.promote(t.Context())
			require.EqualValues(t, c.runs, size(runs))
			require.Equal(t, c.runs == 1, strings.Contains(messages.String(), "The worker takes over"), messages.String())
		})
	}
}
