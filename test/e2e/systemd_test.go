package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/testkit/need"
	"github.com/gpuaas/gpuaas/test/testkit/systemdtest"
)

// systemdMachine is a host with a real systemd, on which the tests install the agent as an
// operator does.
type systemdMachine struct {
	t    *testing.T
	host string
	pid  int // of its systemd
}

// newSystemdMachine boots a machine and waits until it is up. See systemdtest.Boot for what
// a test needs.
func newSystemdMachine(t *testing.T, host string) *systemdMachine {
	t.Helper()
	for _, program := range []string{"/bin/bash", "/usr/bin/jq"} {
		need.Program(t, program, "run: sh tools/need.sh host")
	}
	log, err := os.Create(filepath.Join(shared.Dir, "log", "machine-"+host+".log"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = log.Close() })
	m := &systemdMachine{t: t, host: host}
	m.pid = systemdtest.Boot(t, host, log)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(m.try("journalctl -u gpuaas-node-agent --no-pager | tail -n 40; cat /etc/gpuaas/node-agent.env | grep -v TOKEN"))
		}
	})
	return m
}

// enter is the command line that runs a program on the machine.
func (m *systemdMachine) enter() []string { return systemdtest.Enter(m.pid) }

// try runs a shell command on the machine and returns what it printed.
func (m *systemdMachine) try(command string) string {
	out, _ := systemdtest.Command(m.pid, command).CombinedOutput() // it may fail while the machine boots
	return string(out)
}

// do runs a shell command that must succeed.
func (m *systemdMachine) do(command string) string {
	m.t.Helper()
	out, err := systemdtest.Command(m.pid, command).CombinedOutput()
	require.NoError(m.t, err, "%s: %s", command, out)
	return strings.TrimSpace(string(out))
}

// fakeGPUs gives the machine an nvidia-smi that prints recorded outputs of eight H100, and of
// the compute processes in the file /run/gpu-processes those that run.
func (m *systemdMachine) fakeGPUs() {
	m.t.Helper()
	var gpus strings.Builder
	for i := range 8 {
		fmt.Fprintf(&gpus, "%d, GPU-0b7a3f8e-55c1-2f0d-9e64-5b1f0c9d3e%02d, NVIDIA H100 80GB HBM3, 81559, 550.90.07, 16528230546%02d\n", i, i, i)
	}
	m.do("cat > /usr/local/bin/nvidia-smi <<'END'\n" + `#!/bin/sh
case $1 in
--query-gpu=*) cat <<'GPUS'
` + gpus.String() + `GPUS
;;
--query-compute-apps=pid,process_name,used_memory)
	[ -f /run/gpu-processes ] || exit 0
	while read -r pid rest; do
		[ ! -d "/proc/$pid" ] || echo "$pid, $rest, 75310"
	done </run/gpu-processes
;;
*) echo "unexpected arguments: $*" >&2; exit 2 ;;
esac
END
chmod 0755 /usr/local/bin/nvidia-smi`)
}

// train starts two workloads that use the GPUs: a unit in the slice of the systemd driver, and
// a process that no driver manages. It returns the ID of the latter.
func (m *systemdMachine) train() (pid string) {
	m.t.Helper()
	m.do("systemd-run --quiet --collect --slice=gpuaas-workloads.slice --unit=training sleep 36000")
	m.do("systemd-run --quiet --collect --unit=stray sleep 36000")
	unit, stray := m.do("systemctl show -P MainPID training"), m.do("systemctl show -P MainPID stray")
	m.do(fmt.Sprintf("printf '%%s\\n' '%s /usr/bin/python3' '%s /usr/bin/python3' '%s /opt/notebook' > /run/gpu-processes", unit, unit, stray))
	return stray
}
