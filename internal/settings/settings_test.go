package settings_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/settings"
	"github.com/gpuaas/gpuaas/schema"
)

func reader(vars map[string]string) *settings.Reader {
	return settings.From(func(name string) string { return vars[name] })
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestSecretIsItsVariableOrItsFile(t *testing.T) {
	t.Parallel()
	path := file(t, "of the file\n")
	for want, vars := range map[string]map[string]string{
		"of the variable": {"A": "of the variable", "A_FILE": path},
		"of the file":     {"A_FILE": path},
	} {
		r := reader(vars)
		require.Equal(t, want, r.Secret("A"))
		require.NoError(t, r.Err(""))
	}
}

func TestEveryFaultIsToldAndNoSecret(t *testing.T) {
	t.Parallel()
	r := reader(map[string]string{"B_FILE": file(t, " \n"), "C_FILE": "/nowhere", "GPUAAS_LOG_LEVEL": "loud", "D": "hunter2"})
	for _, name := range []string{"A", "B", "C", "D"} {
		r.Secret(name)
	}
	r.Need("E")
	r.LogLevel()
	err := r.Err("look")
	require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err))
	require.Equal(t, "look", schema.AsError(err).Next)
	for _, fault := range []string{"A or A_FILE is not set", "B_FILE: the file is empty", "C_FILE: open", "E is not set", `unknown level "loud"`} {
		require.ErrorContains(t, err, fault)
	}
	require.NotContains(t, err.Error(), "hunter2")
}

func TestLogLevel(t *testing.T) {
	t.Parallel()
	require.Equal(t, slog.LevelInfo, reader(nil).LogLevel())
	require.Equal(t, slog.LevelDebug, reader(map[string]string{"GPUAAS_LOG_LEVEL": "debug"}).LogLevel())
}

func TestSecretsAreThePasswordAndTheLogin(t *testing.T) {
	t.Parallel()
	got := settings.Secrets("postgres://u:p@h/db", file(t, "login\n"))
	require.Equal(t, []schema.Secret{schema.NewSecret("p"), schema.NewSecret("login")}, got)
	require.Empty(t, settings.Secrets("postgres://h/db", "/nowhere"))
}
