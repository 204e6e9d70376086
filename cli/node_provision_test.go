package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
)

// A public key, and what must never be printed of a private one.
const (
	publicKey  = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me@laptop"
	privateKey = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEcanary\n-----END OPENSSH PRIVATE KEY-----\n"
)

// keyFile writes a file of keys and returns its path.
func (h *harness) keyFile(name, content string) string {
	h.t.Helper()
	path := filepath.Join(h.env.dir, name)
	require.NoError(h.t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// TestProvisionChoosesTheMachine: the flags of the machine are the options of the operation.
func TestProvisionChoosesTheMachine(t *testing.T) {
	t.Parallel()
	h := setup(t)
	other := strings.Replace(publicKey, "me@laptop", "other", 1)
	one, two := h.keyFile("one.pub", "# mine\n\n"+publicKey+"\r\n"), h.keyFile("two.pub", other)
	require.Zero(t, h.run("node", "provision", "gpu-17", "--no-wait", "--provider-region", "fra1", "--type", "gpu-8", "--image", "noble", "--spot",
		"--ssh-key", one, "--ssh-key", two), h.err.String())
	require.Len(t, h.temporal.submitted, 1)
	require.Equal(t, machine.Options{Region: "fra1", Type: "gpu-8", Image: "noble", Spot: true, SSHKeys: []string{publicKey, other}},
		h.temporal.submitted[0].Options.Machine)
}

// TestPrivateKeysAreRefused: a file that is not one of public keys is refused before any request, and
// nothing of it is printed.
func TestPrivateKeysAreRefused(t *testing.T) {
	t.Parallel()
	for content, message := range map[string]string{
		privateKey:                              "it contains a private key; name the file of the public key",
		publicKey + "\n" + privateKey:           "it contains a private key",
		"PuTTY-User-Key-File-3: canary":         "it contains a private key",
		"b3BlbnNzaC1rZXktdjEcanary":             "it contains a line that is not an SSH public key",
		"ssh-ed25519 canary":                    "it contains a line that is not an SSH public key",
		"ssh-rsa " + publicKey[12:]:             "it contains a line that is not an SSH public key",
		`command="canary" ` + publicKey:         "it contains a line that is not an SSH public key",
		"# canary\n":                            "it contains no SSH public key",
		"":                                      "it contains no SSH public key",
		strings.Repeat("canary\n", maxKeyFile):  "it is larger than 64 KiB",
		publicKey + "\nssh-dss AAAAB3Nz canary": "it contains a line that is not an SSH public key",
	} {
		h := setup(t)
		path := h.keyFile("key", content)
		require.Equal(t, schema.ExitUsage, h.run("node", "provision", "gpu-17", "--ssh-key", path), message)
		require.Contains(t, h.err.String(), "--ssh-key "+path+": "+message)
		require.NotContains(t, h.out.String()+h.err.String(), "canary")
		require.Empty(t, h.api.requests)
	}
}
