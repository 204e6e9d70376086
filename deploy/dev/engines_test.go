package dev

import (
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// realStack returns a stack with the real engines, on random ports in a temporary
// folder. The test fails if their programs are missing.
func realStack(t *testing.T) *stack {
	t.Helper()
	if testing.Short() {
		t.Skip("starts real servers; not under -short")
	}
	wd, err := os.Getwd()
	require.NoError(t, err)
	tree := findSourceTree(wd)
	s := &stack{
		layout: layout{dir: filepath.Join(t.TempDir(), "stack")}, messages: t.Output(),
		getenv: func(string) string { return "" },
		programs: programs{executable: filepath.Join(tree, "bin", "gpuaas"), messages: t.Output(), look: func(program string) string {
			if program != "postgres" {
				return "" // test the embedded builds
			}
			path, _ := exec.LookPath(program)
			return path
		}},
	}
	require.NotEmpty(t, s.programs.find(vaultBinary), "bin/%s is missing; build it with: ./task build:dev-vault", vaultBinary)
	require.NotEmpty(t, s.programs.find(temporalBinary), "bin/%s is missing; build it with: ./task build:dev-temporal", temporalBinary)
	require.NotEmpty(t, findPostgres(s.programs.look), "a Postgres server is missing; install it with: sh tools/need-postgres.sh")
	require.NoError(t, s.layout.make())
	require.NoError(t, s.configure(t.Context(), freeBase(t)))
	t.Cleanup(func() { require.NoError(t, s.wipe(context.Background())) }) //nolint:usetesting // the test's context has ended by then
	return s
}

func startEngines(t *testing.T, s *stack) map[string]identity {
	t.Helper()
	ids := map[string]identity{}
	for _, p := range s.engines() {
		_, err := s.ensurePart(t.Context(), p)
		require.NoError(t, err)
		require.NoError(t, p.healthy.once(t.Context()), p.name)
		id, ok := s.layout.processes().running(p.owner())
		require.True(t, ok, p.name)
		ids[p.owner()] = id
	}
	require.Len(t, ids, 3)
	return ids
}

func TestEnginesSurviveKillAndStop(t *testing.T) {
	t.Parallel()
	s := realStack(t)
	first := startEngines(t, s)
	require.Equal(t, first, startEngines(t, s), "running parts are not restarted")
	require.NoError(t, vaultEngine{s}.ensureToken())
	vault(t, s, http.MethodPost, "mounts/canary", http.StatusNoContent)
	requirePrivate(t, s, first)

	vault(t, s, http.MethodPut, "seal", http.StatusNoContent)
	require.Equal(t, first, startEngines(t, s), "a sealed Vault is unsealed and not restarted")

	for _, id := range first {
		require.NoError(t, id.signal(syscall.SIGKILL))
	}
	second := startEngines(t, s) // immediately: a killed process may still appear to run
	for name := range first {
		require.NotEqual(t, first[name], second[name], name)
	}
	vault(t, s, http.MethodGet, "mounts/canary", http.StatusOK)

	require.NoError(t, s.stopAll(t.Context()))
	for name, id := range second {
		require.False(t, id.alive(), name)
	}
	for _, p := range s.engines() {
		for _, use := range p.uses {
			require.True(t, portFree(t.Context(), use.port), "%s of %s", use.purpose, p.name)
		}
	}
	st := s.statusOf(t.Context(), temporalEngine{s}.parts()[1])
	require.Equal(t, "not running", st.Reason)

	startEngines(t, s)
	vault(t, s, http.MethodGet, "mounts/canary", http.StatusOK)
	data := s.record.PostgresData
	require.DirExists(t, data)
	require.NoError(t, s.wipe(t.Context()))
	require.NoDirExists(t, s.layout.dir)
	require.NoDirExists(t, data)
	require.NoError(t, s.layout.make()) // for the cleanup
}

// vault sends a request to the Vault's system API with the root token.
func vault(t *testing.T, s *stack, method, path string, want int) {
	t.Helper()
	token, err := os.ReadFile(s.layout.vaultToken())
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), method, s.record.Vault.Address+"/v1/sys/"+path, strings.NewReader(`{"type":"kv"}`))
	require.NoError(t, err)
	req.Header.Set("X-Vault-Token", strings.TrimSpace(string(token)))
	resp, err := send(&http.Transport{}, req)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, want, resp.StatusCode, string(body))
}

// requirePrivate checks that no secret is visible to other users, neither in process
// arguments nor in files.
func requirePrivate(t *testing.T, s *stack, ids map[string]identity) {
	t.Helper()
	var secrets []string
	for _, name := range []string{"postgres-password", "vault-root-token"} {
		raw, err := os.ReadFile(s.layout.secret(name))
		require.NoError(t, err)
		secrets = append(secrets, strings.TrimSpace(string(raw)))
	}
	for name, id := range ids {
		args, err := exec.CommandContext(t.Context(), "ps", "-ww", "-o", "args=", "-p", strconv.Itoa(id.PID)).Output()
		require.NoError(t, err)
		for _, secret := range secrets {
			require.NotContains(t, string(args), secret, name)
		}
	}
	entries, err := os.ReadDir(s.layout.secretsDir())
	require.NoError(t, err)
	require.NotEmpty(t, entries)
	for _, e := range entries {
		info, err := e.Info()
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, e.Name())
	}
}
