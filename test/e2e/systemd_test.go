package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// bootMachine starts systemd as the first process of new namespaces. Their root is an overlay
// of this machine's root, whose changes are in memory. The network is this machine's, so that
// the agent reaches the stack. Only cgroups for systemd's own use exist.
const bootMachine = `set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$BASE"
mkdir "$BASE/upper" "$BASE/work" "$BASE/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$BASE/upper,workdir=$BASE/work" "$BASE/root"
cd "$BASE/root"
mount -t proc proc proc
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mount -t sysfs -o ro sysfs sys
mount --rbind /dev dev
mount -t tmpfs tmpfs sys/fs/cgroup
mkdir sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
hostname "$HOST"
echo "$HOST" > etc/hostname
: > etc/machine-id
mkdir -p .old
pivot_root . .old
export container=gpuaas-test
exec /usr/lib/systemd/systemd --system --unit=basic.target
`

// systemdMachine is a host with a real systemd, on which the tests install the agent as an
// operator does.
type systemdMachine struct {
	t    *testing.T
	host string
	pid  int // of its systemd
}

// newSystemdMachine boots a machine and waits until it is up. A test skips where that is not
// possible: it needs root and a Debian or Ubuntu host with systemd and the cgroups of its
// version 1, such as the machines that run this suite.
func newSystemdMachine(t *testing.T, host string) *systemdMachine {
	t.Helper()
	release, _ := os.ReadFile("/etc/os-release") // checked below
	for what, there := range map[string]bool{
		"root": os.Geteuid() == 0, "systemd": exists("/usr/lib/systemd/systemd"), "systemctl": exists("/usr/bin/systemctl"),
		"unshare": exists("/usr/bin/unshare"), "cgroups": exists("/sys/fs/cgroup/systemd"),
		"Debian": bytes.Contains(release, []byte("debian")), "bash": exists("/bin/bash"), "jq": exists("/usr/bin/jq"),
	} {
		if !there {
			t.Skipf("a machine with a real systemd needs %s", what)
		}
	}
	log, err := os.Create(filepath.Join(shared.Dir, "log", "machine-"+host+".log"))
	require.NoError(t, err)
	boot := exec.Command("unshare", "-m", "-p", "-f", "--kill-child", "-i", "-u", "-C", "sh", "-c", bootMachine)
	boot.Env = []string{"PATH=" + os.Getenv("PATH"), "BASE=" + t.TempDir(), "HOST=" + host}
	boot.Stdout, boot.Stderr = log, log
	boot.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	require.NoError(t, boot.Start())
	m := &systemdMachine{t: t, host: host}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(m.try("journalctl -u gpuaas-node-agent --no-pager | tail -n 40; cat /etc/gpuaas/node-agent.env | grep -v TOKEN"))
		}
		_ = boot.Process.Kill() // its child dies with it, and so do all processes of the machine
		_ = boot.Wait()
		_ = log.Close()
	})
	eventually(t, host+" boots", func() bool {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", boot.Process.Pid))
		if m.pid, _ = strconv.Atoi(strings.TrimSpace(string(children))); err != nil || m.pid == 0 {
			return false
		}
		return strings.TrimSpace(m.try("systemctl is-active basic.target")) == "active"
	})
	return m
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// enter is the command line that runs a program on the machine.
func (m *systemdMachine) enter() []string {
	return []string{"nsenter", "-t", strconv.Itoa(m.pid), "-m", "-u", "-i", "-p", "-C", "env", "-i",
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "sh", "-c"}
}

// try runs a shell command on the machine and returns what it printed.
func (m *systemdMachine) try(command string) string {
	args := append(m.enter(), "cd /root; "+command)
	out, _ := exec.Command(args[0], args[1:]...).CombinedOutput() // it may fail while the machine boots
	return string(out)
}

// do runs a shell command that must succeed.
func (m *systemdMachine) do(command string) string {
	m.t.Helper()
	args := append(m.enter(), "cd /root; "+command)
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
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
