package server

import (
	"crypto/x509"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

// A process that starts while Vault is sealed serves polls with the certificate that an earlier
// process saved, and says so. When Vault is unsealed it replaces the certificate and is whole
// again.
func TestColdStartWhileVaultIsSealed(t *testing.T) {
	databaseURL := pgtest.New(t, store.Migrate)
	p := newProcess(t, databaseURL)
	p.vars["GPUAAS_STATE_DIR"] = filepath.Join(t.TempDir(), "state")
	publish(t, databaseURL, p.vault)
	stop := p.start()
	p.answers(p.admin+"/readyz", http.StatusOK, `{"status":"ok","degraded":["temporal"]}`)
	base, agent := p.enrolled(databaseURL)
	polled := func() *x509.Certificate { // a probe; it returns the server's certificate
		t.Helper()
		a, err := agent.Post(base+"/tasks/wait", "", nil)
		require.NoError(t, err)
		require.NoError(t, a.Body.Close())
		require.Equal(t, http.StatusNoContent, a.StatusCode)
		return a.TLS.PeerCertificates[0]
	}
	first := polled()
	require.Equal(t, 0, stop())

	p.vault.Seal(t)
	agent.CloseIdleConnections()
	stop = p.start()
	p.answers(p.admin+"/readyz", http.StatusOK, `{"status":"ok","degraded":["vault","server-certificate","lease-key","temporal"]}`)
	require.Equal(t, first, polled())
	stuck := string(p.ask(http.MethodGet, "/stuck", nil).body)
	assert.Contains(t, stuck, `"component":"server-certificate"`)
	assert.Contains(t, stuck, "the server certificate is that of an earlier process, because Vault was unavailable at the start")
	assert.Contains(t, stuck, "this process has not logged in to Vault since its start")

	p.vault.Unseal(t)
	p.answers(p.admin+"/readyz", http.StatusOK, `{"status":"ok","degraded":["temporal"]}`)
	agent.CloseIdleConnections()
	assert.NotEqual(t, first.SerialNumber, polled().SerialNumber)
	require.Equal(t, 0, stop())
}

// A process that starts while Vault cannot be reached says that, and not that its clock is wrong.
func TestColdStartWithoutVault(t *testing.T) {
	databaseURL := pgtest.New(t, store.Migrate)
	p := newProcess(t, databaseURL)
	p.vars["GPUAAS_STATE_DIR"] = filepath.Join(t.TempDir(), "state")
	publish(t, databaseURL, p.vault)
	stop := p.start()
	p.becomes(http.StatusOK, "ok")
	require.Equal(t, 0, stop())

	p.vars["VAULT_ADDR"] = "http://" + harness.FreeAddress(t)
	stop = p.start()
	p.answers(p.admin+"/readyz", http.StatusOK, `{"status":"ok","degraded":["vault","server-certificate","lease-key","temporal"]}`)
	stuck := string(p.ask(http.MethodGet, "/stuck", nil).body)
	assert.Contains(t, stuck, `"component":"vault"`)
	assert.NotContains(t, stuck, `"component":"clock"`)
	assert.NotContains(t, p.log.String(), "clocks differ")
	assert.NotContains(t, p.scrape(), `gpuaas_clock_skew_seconds{peer="vault"}`)
	require.Equal(t, 0, stop())
}

// A saved file that is not usable is ignored: the process waits for Vault, and its log says why.
func TestColdStartWithAnUnusableFile(t *testing.T) {
	databaseURL := pgtest.New(t, store.Migrate)
	p := newProcess(t, databaseURL)
	dir := t.TempDir()
	p.vars["GPUAAS_STATE_DIR"] = dir
	stop := p.start()
	p.becomes(http.StatusOK, "ok")
	require.Equal(t, 0, stop())
	file := filepath.Join(dir, "server-certificate.json")
	require.NoError(t, os.Chmod(file, 0o644))

	p.vault.Seal(t)
	stop = p.start()
	p.becomes(http.StatusServiceUnavailable, "waiting for Vault")
	harness.Eventually(t, "the reason", func() bool { return strings.Contains(p.log.String(), "other users can access it") })
	p.vault.Unseal(t)
	p.becomes(http.StatusOK, "ok")
	info, err := os.Stat(file)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "it was replaced")
	require.Equal(t, 0, stop())
}
