package agent

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/secrets"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// TestDoctorBundle: the archive has the evidence and no secret.
func TestDoctorBundle(t *testing.T) {
	t.Parallel()
	_, c := enrolledNode(t)
	dir := t.TempDir()
	envFile, file := filepath.Join(dir, "node.env"), filepath.Join(dir, "bundle.tar.gz")
	earlier, _, _ := trust.NewToken()
	text := "# comment with hunter2\n" + strings.Join(environ(c), "\n") + "\nHTTPS_PROXY=http://user:hunter2@proxy\nGPUAAS_NVIDIA_SMI=/opt/" + earlier + "\n"
	require.NoError(t, os.WriteFile(envFile, []byte(text), 0o600))
	env := []string{EnvFileVar + "=" + envFile, "PATH=" + os.Getenv("PATH")}
	code, _, errOut := runCommand(t, env, "doctor", "--bundle", file)
	require.Equal(t, schema.ExitDone, code, errOut)

	files := unpack(t, file)
	for _, name := range []string{"doctor.json", "status.json", "node-agent.env", "hosts.txt", "journal.txt", "unit.txt", "connections.txt"} {
		require.Contains(t, files, name)
	}
	require.True(t, json.Valid([]byte(files["doctor.json"])))
	require.Contains(t, files["node-agent.env"], "GPUAAS_API_URL="+c.APIURL)
	require.Contains(t, files["node-agent.env"], "GPUAAS_ENROLLMENT_TOKEN=REDACTED")
	require.Contains(t, files["hosts.txt"], "localhost")
	for name, content := range files {
		require.NotContains(t, content, c.EnrollmentToken.Reveal(), name)
		require.NotContains(t, content, earlier, name)
		require.NotContains(t, content, "hunter2", name)
		require.NotContains(t, content, "PRIVATE KEY", name)
	}
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())

	code, _, errOut = runCommand(t, env, "doctor", "--bundle", file)
	require.Equal(t, schema.ExitRefused, code, "a file that exists stays")
	require.Contains(t, errOut, "file exists")
	require.Contains(t, errOut, "next: name a file that does not exist")
}

// TestDoctorWithoutABundle: the report is printed also if the bundle cannot be written.
func TestDoctorWithoutABundle(t *testing.T) {
	t.Parallel()
	_, c := enrolledNode(t)
	code, out, _ := runCommand(t, environ(c), "doctor", "--bundle", filepath.Join(t.TempDir(), "missing", "bundle.tar.gz"))
	require.Equal(t, schema.ExitRefused, code)
	require.Contains(t, out, "identity accepted")
}

// TestBundleThatFails: an archive that cannot be completed leaves no file.
func TestBundleThatFails(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "bundle.tar.gz")
	require.Error(t, writeBundle(file, []evidenceFile{{"first", []byte("text")}, {"no\x00name", nil}}))
	require.NoFileExists(t, file)
}

// TestEvidenceOfSecrets: a file with a secret keeps its form and everything else.
func TestEvidenceOfSecrets(t *testing.T) {
	t.Parallel()
	token, _, _ := trust.NewToken()
	block := "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49\nAgEGCCqGSM49AwEH\n-----END PRIVATE KEY-----\n"
	files := withoutSecrets(secrets.New(), []evidenceFile{
		{"doctor.json", []byte("{\n  \"answer\": \"said \\\"" + token + "\\\"\",\n  \"list\": [\n    \"" + token + "\"\n  ],\n  \"name\": \"route\"\n}")},
		{"journal.txt", []byte("before\n" + block + "between\n" + token + "\nafter\n")},
	})
	require.JSONEq(t, `{"answer": "REDACTED", "list": ["REDACTED"], "name": "route"}`, string(files[0].content))
	require.Equal(t, "before\nREDACTED\nREDACTED\nREDACTED\nREDACTED\nbetween\nREDACTED\nafter\n", string(files[1].content))
}

// TestPublicEnvHidesUsers: a URL with a password is no public value.
func TestPublicEnvHidesUsers(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "node.env")
	for url, shown := range map[string]string{"https://user:hunter2@api": "REDACTED", "user:hunter2@api": "REDACTED", "https://api": "https://api"} {
		require.NoError(t, os.WriteFile(file, []byte("GPUAAS_API_URL="+url+"\nGPUAAS_ENV=test\n"), 0o600))
		require.Equal(t, "GPUAAS_API_URL="+shown+"\nGPUAAS_ENV=test\n", publicEnv(file))
	}
}

// unpack returns the files of a gzip-compressed tar archive.
func unpack(t *testing.T, file string) map[string]string {
	t.Helper()
	in, err := os.Open(file)
	require.NoError(t, err)
	defer in.Close()
	packed, err := gzip.NewReader(in)
	require.NoError(t, err)
	files := map[string]string{}
	for archive := tar.NewReader(packed); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		content, err := io.ReadAll(archive)
		require.NoError(t, err)
		files[h.Name] = string(content)
	}
}
