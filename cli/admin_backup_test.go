package cli_test

import (
	"bytes"
	"context"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/cli"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/diagnosis"
)

// TestAdminDrill: a drill prints each check, and exits with 1 if one failed. The dump is optional.
func TestAdminDrill(t *testing.T) {
	t.Parallel()
	var file string
	var report diagnosis.Report
	p := cli.Platform{Drill: func(_ context.Context, f string, progress io.Writer) (diagnosis.Report, error) {
		file = f
		_, err := io.WriteString(progress, "restoring\n")
		return report, err
	}}
	drill := func(args ...string) (code int, out, errs string) {
		var o, e bytes.Buffer
		code = cli.Main(t.Context(), p, append([]string{"admin", "drill"}, args...), cli.Stdio{In: strings.NewReader(""), Out: &o, Err: &e})
		return code, o.String(), e.String()
	}
	report.Add(diagnosis.Check{Name: "restore"}.OK("in 3s"))
	code, out, errs := drill()
	require.Zero(t, code, errs)
	require.Empty(t, file)
	require.Equal(t, "restoring\n", errs)
	require.Regexp(t, `ok\s+restore\s+in 3s`, out)

	report.Add(diagnosis.Check{Name: "audit trail"}.Failed("row 3 was changed", diagnosis.Operator, "compare"))
	report.Add(diagnosis.Check{Name: "age"}.Skipped())
	code, out, errs = drill("a.dump")
	require.Equal(t, schema.ExitFailed, code)
	require.Equal(t, "a.dump", file)
	require.Regexp(t, `failed\s+audit trail\s+row 3 was changed\n`, out)
	require.Contains(t, out, "compare")
	require.Contains(t, errs, "1 of 2 checks failed")

	code, out, _ = drill("a.dump", "-o", "json")
	require.Equal(t, schema.ExitFailed, code)
	require.Contains(t, out, `"result": "failed"`)
	code, _, errs = drill("a.dump", "b.dump")
	require.Equal(t, schema.ExitUsage, code)
	require.Contains(t, errs, "b.dump")
	code, _, _ = drill("--direct")
	require.Equal(t, schema.ExitUsage, code)
}

// TestAdminBackup: a backup prints the file, and the command that checks it.
func TestAdminBackup(t *testing.T) {
	t.Parallel()
	p := cli.Platform{Backup: func(_ context.Context, file string, _ io.Writer) (cli.Backup, error) {
		if file == "there" {
			return cli.Backup{}, schema.NewError(schema.KindAlreadyExists, "there exists")
		}
		return cli.Backup{File: file, Bytes: 4096}, nil
	}}
	backup := func(args ...string) (int, string) {
		var o, e bytes.Buffer
		code := cli.Main(t.Context(), p, append([]string{"admin", "backup"}, args...), cli.Stdio{In: strings.NewReader(""), Out: &o, Err: &e})
		return code, o.String()
	}
	code, out := backup("a.dump")
	require.Zero(t, code)
	require.Contains(t, out, "gpuaas admin drill a.dump")
	require.Contains(t, out, "4096 bytes")
	code, _ = backup("there")
	require.Equal(t, schema.ExitRefused, code)
	code, _ = backup()
	require.Equal(t, schema.ExitUsage, code)
}

// TestFailedProgram: an error that has the exit of another program is printed as each other one. That of
// pg_dump says why there is no backup.
func TestFailedProgram(t *testing.T) {
	t.Parallel()
	ended := exec.CommandContext(t.Context(), "sh", "-c", "exit 3").Run()
	require.ErrorAs(t, ended, new(*exec.ExitError))
	p := cli.Platform{Backup: func(context.Context, string, io.Writer) (cli.Backup, error) {
		return cli.Backup{}, schema.Wrap(schema.KindInternal, ended, "pg_dump: No space left on device").WithReason("pg_dump").WithNext("free disk space")
	}}
	for _, args := range [][]string{nil, {"-o", "json"}} {
		var o, e bytes.Buffer
		code := cli.Main(t.Context(), p, append([]string{"admin", "backup", "a.dump"}, args...), cli.Stdio{In: strings.NewReader(""), Out: &o, Err: &e})
		require.Equal(t, schema.ExitFailed, code)
		require.Contains(t, e.String(), "error: pg_dump: No space left on device: exit status 3 (internal: pg_dump)\nnext:  free disk space\n")
		require.Equal(t, args != nil, strings.Contains(o.String(), "No space left"), "the envelope")
	}
}
