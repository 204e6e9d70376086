package cli_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/cli"
	"github.com/gpuaas/gpuaas/schema/restore"
)

// TestRestoreModeWarns: a start names the database, and warns if others use it.
func TestRestoreModeWarns(t *testing.T) {
	t.Parallel()
	for sessions, warning := range map[int64]string{
		0: "", 2: "Warning: 2 other sessions in the database gpuaas. Start the mode in the restored database, before other processes use it.\n",
	} {
		p := cli.Platform{RestoreMode: func(context.Context, cli.RestoreOptions) (restore.Mode, error) {
			return restore.Mode{Database: "gpuaas", OtherSessions: sessions}, nil
		}}
		var out, errs bytes.Buffer
		code := cli.Main(t.Context(), p, []string{"admin", "restore-mode", "start", "--reason", "x"}, cli.Stdio{In: strings.NewReader(""), Out: &out, Err: &errs})
		require.Zero(t, code, errs.String())
		require.Equal(t, warning, errs.String())
		require.Regexp(t, `Database:\s+gpuaas \(\d other sessions\)`, out.String())
	}
}
