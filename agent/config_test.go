package agent

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

func TestParseEnvFile(t *testing.T) {
	t.Parallel()
	vars, err := parseEnvFile("# comment\n; too\n\nA=\"x \\\"y\\\" \\\\ z\"\n B = plain text \nC='as $is \\n'\nD=\nE=\"\"\nA_1=last\nA_1=\"wins\"\r\n")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"A": `x "y" \ z`, "B": "plain text", "C": `as $is \n`, "D": "", "E": "", "A_1": "wins"}, vars)
}

func TestParseEnvFileFaults(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"novalue", "1A=x", "=x", "A B=x", `A="open`, `A="x" y`, "A='open", "A='a'b'", "A=\x00", `A="\x00"`} {
		_, err := parseEnvFile("OK=1\n" + text)
		require.ErrorContains(t, err, "line 2", text)
	}
	_, err := parseEnvFile("TOKEN=\"secretsecret")
	require.Error(t, err)
	require.NotContains(t, err.Error(), "secretsecret")
}

func TestBundleEnvFileReadsBack(t *testing.T) {
	t.Parallel()
	b := trust.BootstrapBundle{NodeID: "n", EnrollmentToken: `a"b\c`, APIURL: "https://x", CABundlePath: "/a b/c", Env: "dev"}
	vars, err := parseEnvFile(b.EnvFile())
	require.NoError(t, err)
	require.Equal(t, b.EnrollmentToken, vars["GPUAAS_ENROLLMENT_TOKEN"])
	require.Equal(t, b.CABundlePath, vars["GPUAAS_CA_BUNDLE_PATH"])
}

func FuzzParseEnvFile(f *testing.F) {
	for _, s := range []string{"A=1", `A="\u00e9\n"`, "A='x'", "# c\nA=\"", "A=\"\\", "\xff=\xfe"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		vars, err := parseEnvFile(text)
		if err != nil {
			return
		}
		var back strings.Builder
		for k, v := range vars {
			require.True(t, validEnvKey(k))
			require.NotContains(t, v, "\x00")
			fmt.Fprintf(&back, "%s=%q\n", k, v)
		}
		again, err := parseEnvFile(back.String())
		require.NoError(t, err)
		require.Equal(t, vars, again)
	})
}

func TestLoadConfig(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "node.env")
	require.NoError(t, os.WriteFile(path, []byte("GPUAAS_ENV=\"file\"\nGPUAAS_API_URL=\"https://api.example/\"\n"), privateFile))
	c, err := LoadConfig([]string{EnvFileVar + "=" + path, "GPUAAS_ENV=real", "GPUAAS_STATE_DIR=/s"})
	require.NoError(t, err)
	require.Equal(t, "real", c.Env)
	require.Equal(t, "https://api.example", c.APIURL)
	require.Equal(t, path, c.EnvFile)
	require.Equal(t, trust.DefaultCertPath, c.CertPath)
	require.Equal(t, DriverNone, c.WorkloadDriver)
	require.Equal(t, "/s/workloads", c.WorkloadDir)

	_, err = LoadConfig([]string{EnvFileVar + "=" + path + ".absent"})
	require.ErrorContains(t, err, EnvFileVar)
	require.NoError(t, os.WriteFile(path, []byte("nonsense"), privateFile))
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

func TestAPIURL(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"https://api.example", "https://localhost:8443"} {
		require.NoError(t, checkAPIURL(good))
	}
	for _, bad := range []string{"", "http://api.example", "https://10.1.2.3", "https://[::1]:8443", "https://user@api.example",
		"https://api.example/path", "https://api.example?x=1", "https://", "api.example", "https://a b"} {
		require.Error(t, checkAPIURL(bad), bad)
	}
}

func TestSecretNeverPrints(t *testing.T) {
	t.Parallel()
	s := Secret("gpuet_hunter2")
	c := Config{EnrollmentToken: s}
	var buf strings.Builder
	slog.New(slog.NewJSONHandler(&buf, nil)).Info("m", "s", s, "c", c)
	data, err := json.Marshal(c)
	require.NoError(t, err)
	all := buf.String() + string(data) + fmt.Sprintf("%v %+v %#v %s %q", c, c, c, s, s)
	require.NotContains(t, all, "hunter2")
	require.Contains(t, all, "[hidden]")
}
