package agent

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/envfile"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

func TestParseBundleEnvFile(t *testing.T) {
	t.Parallel()
	b := trust.BootstrapBundle{NodeID: "n", EnrollmentToken: `a"b\c`, APIURL: "https://x", CABundlePath: "/a b/c", Env: "dev"}
	vars, err := envfile.Parse(b.EnvFile())
	require.NoError(t, err)
	require.Equal(t, b.EnrollmentToken, vars["GPUAAS_ENROLLMENT_TOKEN"])
	require.Equal(t, b.CABundlePath, vars["GPUAAS_CA_BUNDLE_PATH"])
}

func TestLoadConfig(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "node.env")
	require.NoError(t, os.WriteFile(path, []byte("GPUAAS_ENV=\"file\"\nGPUAAS_API_URL=\"https://api.example/\"\n"), 0o600))
	c, err := LoadConfig([]string{EnvFileVar + "=" + path, "GPUAAS_ENV=real", "GPUAAS_STATE_DIR=/s"})
	require.NoError(t, err)
	require.Equal(t, "real", c.Env)
	require.Equal(t, "https://api.example", c.APIURL)
	require.Equal(t, path, c.EnvFile)
	require.Equal(t, trust.DefaultCertPath, c.CertPath)
	require.Empty(t, c.WorkloadDriver, "without a driver, the workloads are unknown")

	_, err = LoadConfig([]string{EnvFileVar + "=" + path + ".absent"})
	require.ErrorContains(t, err, EnvFileVar)
	require.NoError(t, os.WriteFile(path, []byte("nonsense"), 0o600))
	_, err = LoadConfig([]string{EnvFileVar + "=" + path})
	require.ErrorContains(t, err, "line 1")
}

func TestValidateListsEveryFault(t *testing.T) {
	t.Parallel()
	c := configOf(map[string]string{
		"GPUAAS_NODE_ID": "gpu-17", "GPUAAS_API_URL": "http://10.0.0.1:8443", "GPUAAS_ENROLLMENT_TOKEN": "gpuet_hunter2",
		"GPUAAS_TASK_SIGNING_PUBKEYS": "active:k1:AAAA", "GPUAAS_CERT_PATH": "/x", "GPUAAS_KEY_PATH": "/x",
		"GPUAAS_WORKLOAD_DRIVER": "slurm",
	}, "")
	err := c.Validate()
	require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err))
	for _, want := range []string{"GPUAAS_NODE_ID", "GPUAAS_API_URL", "GPUAAS_ENROLLMENT_TOKEN", "GPUAAS_TASK_SIGNING_PUBKEYS",
		"GPUAAS_ENV", "GPUAAS_KEY_PATH", "GPUAAS_WORKLOAD_DRIVER"} {
		require.ErrorContains(t, err, want)
	}
	require.NotContains(t, err.Error(), "hunter2")
}

func TestTokenNotPrinted(t *testing.T) {
	t.Parallel()
	c := Config{EnrollmentToken: schema.NewSecret("gpuet_hunter2")}
	var buf strings.Builder
	slog.New(slog.NewJSONHandler(&buf, nil)).Info("m", "c", c)
	all := buf.String() + fmt.Sprintf("%v %+v %#v", c, c, c)
	require.NotContains(t, all, "hunter2")
}
