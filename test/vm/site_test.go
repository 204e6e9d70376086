package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/providers/libvirt"
	"github.com/gpuaas/gpuaas/internal/providers/maas"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/stack"
	"github.com/gpuaas/gpuaas/test/testkit/libvirttest"
	"github.com/gpuaas/gpuaas/test/testkit/need"
)

// The limits of a machine that emulates its CPU on a busy host.
const (
	operationTimeout = 8 * time.Minute
	conditionTimeout = 3 * time.Minute
	conditionEvery   = 250 * time.Millisecond
)

var host libvirttest.Shared

func TestMain(m *testing.M) { host.Run(m) }

// site is a stack whose worker creates virtual machines.
type site struct {
	t     *testing.T
	host  libvirttest.Host
	stack *stack.Stack
	rack  *rack
	state string // of the provider libvirt
	env   []string
	dir   string // of the virsh that the stack's worker runs, and of other files
	// netboots is set if machines boot over HTTP.
	netboots bool
}

// imageDir is the image with a workload.
const imageDir = "../../bin/vm-image-workload"

// bootTimeout is how long a machine may take to boot.
const bootTimeout = "2m"

// newSite starts a stack whose machines run a workload.
func newSite(t *testing.T) *site {
	t.Helper()
	return newSiteOf(t, imageDir)
}

// buildOf is the command that builds an image.
func buildOf(imageDir string) string {
	if imageDir == productImage {
		return "./task vm-image"
	}
	return "./task vm-image:workload"
}

// newSiteOf starts a stack whose machines have the image.
func newSiteOf(t *testing.T, imageDir string) *site {
	t.Helper()
	if testing.Short() {
		t.Skip("starts virtual machines")
	}
	s := &site{t: t, host: host.Open(t), dir: t.TempDir()}
	var err error
	s.env, s.state, err = s.host.Settings(imageDir, libvirt.KernelFile, libvirt.InitramfsFile)
	need.That(t, !errors.Is(err, os.ErrNotExist), "there is no image in %s; build it with: %s", imageDir, buildOf(imageDir))
	require.NoError(t, err)
	s.wrapVirsh()
	s.rack = openRack(t, s.killAt)
	s.env = append(s.env, "PATH="+s.dir+":"+os.Getenv("PATH"), "GPUAAS_LIBVIRT_BOOT_TIMEOUT="+bootTimeout, "GPUAAS_SWEEP=delete")
	s.configure()
	s.bootOverHTTP()
	folder, err := os.MkdirTemp("", "gpuaas-vm-") //nolint:usetesting // short, and Postgres runs as another user
	require.NoError(t, err)
	require.NoError(t, os.Chmod(folder, 0o711)) // Postgres runs as another user
	bin, err := filepath.Abs("../../bin/gpuaas")
	require.NoError(t, err)
	s.stack, err = stack.UpWith(t.Context(), bin, filepath.Join(folder, "dev"), s.env)
	t.Cleanup(func() { require.NoError(t, errors.Join(s.keepLogs(), s.stack.Down(), os.RemoveAll(folder))) })
	require.NoError(t, err)
	s.run("sku", "add", "vm", "--min-cpus", "1", "--min-memory", "256MiB", "--max-gpus", "0")
	return s
}

// wrapVirsh puts a virsh into the worker's PATH that kills the worker if armed: see killWorker.
func (s *site) wrapVirsh() {
	s.t.Helper()
	virsh, err := exec.LookPath("virsh")
	require.NoError(s.t, err)
	script := `#!/bin/sh
when= verb=
[ ! -e '` + s.armed() + `' ] || read -r when verb <'` + s.armed() + `'
hit=
for word in "$@"; do [ "$word" != "$verb" ] || hit=$when; done
case $hit in
before) rm '` + s.armed() + `'; kill -9 "$PPID"; exit 1 ;;
after) '` + virsh + `' "$@"; code=$?; rm '` + s.armed() + `'; kill -9 "$PPID"; exit "$code" ;;
esac
exec '` + virsh + `' "$@"
`
	require.NoError(s.t, os.WriteFile(filepath.Join(s.dir, "virsh"), []byte(script), 0o700))
}

func (s *site) armed() string { return filepath.Join(s.dir, "armed") }

// killWorker makes the next virsh command with the verb, or the next request to MAAS with the
// operation, kill the worker, before or after it runs.
func (s *site) killWorker(when, verb string) {
	s.t.Helper()
	require.NoError(s.t, os.WriteFile(s.armed(), []byte(when+" "+verb+"\n"), 0o600))
}

const (
	// ipxe is the file of Debian's package ipxe.
	ipxe        = "/usr/lib/ipxe/ipxe.lkrn"
	netbootPort = "GPUAAS_LIBVIRT_NETBOOT_PORT="
)

// bootOverHTTP makes machines boot over HTTP, if iPXE is installed.
func (s *site) bootOverHTTP() {
	s.t.Helper()
	if _, err := os.Stat(ipxe); err != nil {
		s.t.Log("machines do not boot over HTTP: iPXE is not installed; run: sh tools/need.sh libvirt")
		return
	}
	port, err := stack.FreePorts(1)
	require.NoError(s.t, err)
	s.env, s.netboots = append(s.env, fmt.Sprintf("%s%d", netbootPort, port)), true
}

// bootDirectly ends what bootOverHTTP began. It starts the worker again.
func (s *site) bootDirectly() {
	s.t.Helper()
	if !s.netboots {
		return
	}
	s.env, s.netboots = append(s.env, netbootPort+"0"), false
	require.NoError(s.t, s.stopWorker())
	s.startWorker()
}

// stopWorker kills the worker.
func (s *site) stopWorker() error {
	parts, err := s.stack.Parts(s.t.Context())
	if err != nil {
		return err
	}
	pid := parts["worker"].PID
	if pid <= 1 { // 0 is this process and its children
		return errors.New("the worker does not run")
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

// awaitKill waits until the worker was killed.
func (s *site) awaitKill() {
	s.t.Helper()
	s.eventually("the worker is killed", func() bool {
		_, err := os.Stat(s.armed())
		return errors.Is(err, os.ErrNotExist)
	})
}

// startWorker starts the worker again.
func (s *site) startWorker() {
	s.t.Helper()
	s.eventually("the worker is started again", func() bool {
		up := exec.CommandContext(s.t.Context(), s.stack.Bin, "dev", "up", "--detach", "--dir", s.stack.Dir)
		up.Env = append(os.Environ(), s.env...)
		return up.Run() == nil
	})
}

func (s *site) keepLogs() error {
	if !s.t.Failed() {
		return nil
	}
	kept, err := filepath.Abs("../../.cache/test/vm-logs")
	if err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(kept), os.CopyFS(kept, os.DirFS(filepath.Join(s.stack.Dir, "log"))))
}

// run runs a command of the CLI and returns its standard output.
func (s *site) run(args ...string) string {
	s.t.Helper()
	out, err := s.try(args...)
	require.NoError(s.t, err, "gpuaas %s: %s", strings.Join(args, " "), out)
	return out
}

// try is run for a command that may fail: it returns all output.
func (s *site) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), operationTimeout)
	defer cancel()
	out, err := s.stack.Command(ctx, args...).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		out = append(out, exit.Stderr...)
	}
	return string(out), err
}

func (s *site) node(name string) (n wire.NodeView) {
	s.t.Helper()
	require.NoError(s.t, json.Unmarshal([]byte(s.run("node", "show", name, "-o", "json")), &n))
	return n
}

func (s *site) operation(name string) (o lifecycle.OperationStatus) {
	s.t.Helper()
	require.NoError(s.t, json.Unmarshal([]byte(s.run("op", "show", name, "-o", "json")), &o))
	return o
}

// register registers a node of a provider.
func (s *site) register(name, provider string) {
	s.t.Helper()
	s.run("node", "register", name, "--mode", provider, "--sku", "vm", "--region", "local")
}

// console returns the console of the node's machine.
func (s *site) console(name string) string {
	s.t.Helper()
	i := s.node(name).Instance
	require.NotNil(s.t, i)
	path := filepath.Join(s.state, "consoles", i.InstanceID+".log")
	if i.Provider == maas.Name {
		path = s.rack.guests.Console(i.ExternalID)
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	require.NoError(s.t, err)
	return string(text)
}

// domains returns the names of all domains.
func (s *site) domains() []string {
	s.t.Helper()
	return strings.Fields(s.host.Virsh(s.t, "list", "--all", "--name"))
}

// with returns the site for a subtest.
func (s *site) with(t *testing.T) *site {
	t.Helper()
	of := *s
	of.t = t
	return &of
}

// nothingLeft requires that there be nothing of a machine.
func (s *site) nothingLeft() {
	s.t.Helper()
	require.Empty(s.t, s.domains())
	require.Empty(s.t, s.left())
	require.Empty(s.t, s.rack.left())
}

// left returns the files of machines in the provider's folder.
func (s *site) left() (files []string) {
	s.t.Helper()
	for _, dir := range []string{"consoles", "boot", "disks"} {
		found, err := filepath.Glob(filepath.Join(s.state, dir, "*"))
		require.NoError(s.t, err)
		files = append(files, found...)
	}
	return files
}

func (s *site) eventually(what string, holds func() bool) {
	s.t.Helper()
	require.Eventually(s.t, holds, conditionTimeout, conditionEvery, what)
}

// logPhases logs how long each phase of the node's last operation took.
func (s *site) logPhases(name string) {
	s.t.Helper()
	for _, p := range s.operation(name).Operation.Phases {
		if p.StartedAt != nil && p.EndedAt != nil {
			s.t.Logf("%s: %s: %.1f s", name, p.Title, p.EndedAt.Sub(*p.StartedAt).Seconds())
		}
	}
}
