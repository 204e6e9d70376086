package systemdtest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/testkit/need"
)

// bootGuest starts systemd-nspawn with a copy of a root whose changes are in a folder.
const bootGuest = `set -e
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=$BASE/upper,workdir=$BASE/work" "$BASE/root"
echo "$HOST" > "$BASE/root/etc/hostname"
: > "$BASE/root/etc/machine-id"
exec nsenter --net="/run/netns/$SITE" systemd-nspawn --quiet --directory="$BASE/root" --machine="$HOST" --boot \
	--register=no --keep-unit --link-journal=no --console=pipe --resolv-conf=off --timezone=off --network-bridge=lan
`

// Site is a network with machines of their own root, process and network namespaces. It has no
// route to other networks. It ends with the test.
type Site struct {
	t    *testing.T
	name string // of its network namespace
	root string
}

// NewSite creates a network for machines that start with the content of the folder root, which
// tools/machine-root.sh creates. It needs root and the programs of tools/need.sh install.
func NewSite(t *testing.T, root string) *Site {
	t.Helper()
	need.Root(t, "a network of machines")
	for _, program := range []string{"systemd-nspawn", "nsenter", "unshare", "ip"} {
		need.Program(t, program, "run: sh tools/need.sh install")
	}
	need.That(t, exists(filepath.Join(root, "sbin", "init")), "there is no %s; run: sh tools/machine-root.sh %[1]s", root)
	s := &Site{t: t, name: fmt.Sprintf("gpuaas-%d", os.Getpid()), root: root}
	s.ip("netns", "add", s.name)
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "delete", s.name).Run() }) // the machines have ended
	s.ip("-n", s.name, "link", "add", "lan", "type", "bridge")
	s.ip("-n", s.name, "link", "set", "lan", "up")
	return s
}

func (s *Site) ip(args ...string) {
	s.t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	require.NoError(s.t, err, "ip %s: %s", strings.Join(args, " "), out)
}

// Guest is a machine of a Site.
type Guest struct {
	// Host is its host name.
	Host string
	t    *testing.T
	pid  int // of its systemd
}

// Boot starts a machine with an address, such as 10.77.0.1/24, and waits until it is up.
func (s *Site) Boot(host, address string) *Guest {
	s.t.Helper()
	base := s.t.TempDir()
	for _, folder := range []string{"upper", "work", "root"} {
		require.NoError(s.t, os.Mkdir(filepath.Join(base, folder), 0o755))
	}
	log, err := os.Create(filepath.Join(base, "console"))
	require.NoError(s.t, err)
	boot := exec.Command("unshare", "--mount", "sh", "-c", bootGuest)
	boot.Env = []string{"PATH=" + os.Getenv("PATH"), "BASE=" + base, "HOST=" + host, "LOWER=" + s.root, "SITE=" + s.name}
	boot.Stdout, boot.Stderr = log, log
	boot.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	require.NoError(s.t, boot.Start())
	g := &Guest{Host: host, t: s.t}
	s.t.Cleanup(func() {
		if g.pid != 0 {
			_ = syscall.Kill(g.pid, syscall.SIGKILL) // all processes of the machine end with it
		} else {
			_ = boot.Process.Kill()
		}
		_ = boot.Wait()
		_ = log.Close()
	})
	require.Eventually(s.t, func() bool { return g.up(boot.Process.Pid) }, 5*time.Minute, 50*time.Millisecond, "%s boots; its console is %s", host, log.Name())
	g.Do("ip link set lo up; ip link set host0 up; ip address add " + address + " dev host0")
	return g
}

// up finds the machine's systemd, a child of systemd-nspawn, and reports whether it has started
// all units.
func (g *Guest) up(nspawn int) bool {
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", nspawn))
	if err != nil {
		return false
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(children)), " ")
	if g.pid, err = strconv.Atoi(first); err != nil {
		g.pid = 0
		return false
	}
	state, _ := g.command(context.Background(), "sh", "-c", "systemctl is-system-running").Output() // it may fail while the machine boots
	return bytes.HasPrefix(state, []byte("running")) || bytes.HasPrefix(state, []byte("degraded"))
}

func (g *Guest) command(ctx context.Context, args ...string) *exec.Cmd {
	enter := []string{"-t", strconv.Itoa(g.pid), "-m", "-u", "-i", "-n", "-p", "-C", "env", "-i",
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "USER=root", "LANG=C.UTF-8"}
	return exec.CommandContext(ctx, "nsenter", append(enter, args...)...)
}

// Run runs a script with bash, as root in /root, and returns what it printed on both outputs.
// The script ends at the first command that fails.
func (g *Guest) Run(ctx context.Context, script string) (string, error) {
	out, err := g.command(ctx, "bash", "-e", "-c", "cd /root\n"+script).CombinedOutput()
	return string(out), err
}

// Do runs a script that must succeed and returns what it printed, without surrounding space.
func (g *Guest) Do(script string) string {
	g.t.Helper()
	out, err := g.Run(g.t.Context(), script)
	require.NoError(g.t, err, "%s: %s\n%s", g.Host, script, out)
	return strings.TrimSpace(out)
}

// Put copies a file to the machine.
func (g *Guest) Put(file, to string, mode os.FileMode) {
	g.t.Helper()
	f, err := os.Open(file)
	require.NoError(g.t, err)
	defer f.Close()
	cmd := g.command(g.t.Context(), "sh", "-c", fmt.Sprintf(`cat > "$1" && chmod %o "$1"`, mode), "sh", to)
	cmd.Stdin = f
	out, err := cmd.CombinedOutput()
	require.NoError(g.t, err, "%s: %s", to, out)
}
