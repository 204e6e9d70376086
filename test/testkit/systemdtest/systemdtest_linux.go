package systemdtest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/testkit/need"
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

// Boot starts a machine, waits until it is up, and returns the process ID of its systemd. Its
// console is written to log. It ends with the test. It needs root and a Debian or Ubuntu host with systemd and the cgroups of its version 1,
// such as the machines that run this suite.
func Boot(t *testing.T, host string, log *os.File) (pid int) {
	t.Helper()
	release, _ := os.ReadFile("/etc/os-release") // checked below
	for what, there := range map[string]bool{
		"root": os.Geteuid() == 0, "systemd": exists("/usr/lib/systemd/systemd"), "systemctl": exists("/usr/bin/systemctl"),
		"unshare": exists("/usr/bin/unshare"), "cgroups": exists("/sys/fs/cgroup/systemd"),
		"Debian": bytes.Contains(release, []byte("debian")),
	} {
		need.That(t, there, "a machine with a real systemd needs %s", what)
	}
	boot := exec.Command("unshare", "-m", "-p", "-f", "--kill-child", "-i", "-u", "-C", "sh", "-c", bootMachine)
	boot.Env = []string{"PATH=" + os.Getenv("PATH"), "BASE=" + t.TempDir(), "HOST=" + host}
	boot.Stdout, boot.Stderr = log, log
	boot.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	require.NoError(t, boot.Start())
	t.Cleanup(func() {
		_ = boot.Process.Kill() // its child dies with it, and so do all processes of the machine
		_ = boot.Wait()
	})
	require.Eventually(t, func() bool {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", boot.Process.Pid))
		if pid, _ = strconv.Atoi(strings.TrimSpace(string(children))); err != nil || pid == 0 {
			return false
		}
		out, _ := Command(pid, "systemctl is-active basic.target").Output() // it may fail while the machine boots
		return strings.TrimSpace(string(out)) == "active"
	}, 5*time.Minute, 50*time.Millisecond, host+" boots")
	return pid
}

// Enter is the command line that runs a shell command on the machine of a systemd.
func Enter(pid int) []string {
	return []string{"nsenter", "-t", strconv.Itoa(pid), "-m", "-u", "-i", "-p", "-C", "env", "-i",
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "sh", "-c"}
}

// Command runs a shell command on the machine of a systemd.
func Command(pid int, command string) *exec.Cmd {
	args := append(Enter(pid), "cd /root; "+command)
	return exec.Command(args[0], args[1:]...)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
