package ansible

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/testkit/need"
)

// Ansible accepts the playbooks and the tasks that they import.
func TestSyntax(t *testing.T) {
	t.Parallel()
	program := need.Program(t, "ansible-playbook", "install ansible-core")
	for _, playbook := range []string{"register.yml", "drain.yml"} {
		out, err := exec.CommandContext(t.Context(), program, "-i", "inventory.example.yml", "--syntax-check", playbook).CombinedOutput()
		require.NoError(t, err, string(out))
		require.NotContains(t, string(out), "WARNING")
	}
}
