package libvirt_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/providers/libvirt"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/test/conformance/provider"
	"github.com/gpuaas/gpuaas/test/testkit/libvirttest"
)

const reference = "gpuref_0123456789abcdef"

// rig is a provider with a host below it, real or recorded.
type rig struct {
	*faulty
	settings libvirt.Settings
	state    string
	// recording is nil for a real host.
	recording *libvirt.Recording
	provider  *libvirt.Provider
	second    *libvirt.Provider
}

var host libvirttest.Shared

func TestMain(m *testing.M) { host.Run(m) }

// A kind of host opens a rig.
type kind struct {
	name string
	open func(*testing.T) *rig
}

func hosts() []kind { return []kind{{"recorder", recorded}, {"real", session}} }

func recorded(t *testing.T) *rig {
	t.Helper()
	recording := libvirt.NewRecording()
	r := newRig(t, libvirt.Settings{Mode: libvirt.Recorder, Owner: "test", StateDir: t.TempDir()}, recording)
	r.recording = recording
	return r
}

func session(t *testing.T) *rig {
	t.Helper()
	h := host.Open(t)
	dir := h.Folder(t)
	require.NoError(t, libvirttest.Image(filepath.Join(dir, libvirt.KernelFile), filepath.Join(dir, libvirt.InitramfsFile)))
	s := libvirt.Settings{Mode: libvirt.Real, Owner: "test-" + uuid.NewString(), StateDir: dir, ImageBase: dir, URI: h.URI, Env: h.Env}
	if os.Getuid() == 0 {
		s.QEMUUser = h.UID
	}
	return newRig(t, s, libvirt.NewProgram(s))
}

func newRig(t *testing.T, s libvirt.Settings, runner libvirt.Runner) *rig {
	t.Helper()
	r := &rig{faulty: &faulty{Runner: runner}, settings: s, state: s.StateDir}
	t.Cleanup(r.wait)
	var err error
	r.provider, err = libvirt.NewWithRunner(s, r.faulty)
	require.NoError(t, err)
	r.second, err = libvirt.NewWithRunner(s, r.faulty)
	require.NoError(t, err)
	t.Cleanup(func() { // domains of a real host outlive the test
		for _, id := range r.Machines(t) {
			r.Destroy(t, id)
		}
	})
	return r
}

func (r *rig) target() provider.Target {
	return provider.Target{
		Provider: r.provider, Second: r.second, Info: r.provider.Source().Info, Spec: spec,
		Faults: r.faulty, Outside: r, Wait: 20 * time.Second,
	}
}

func spec() machine.Spec {
	id := uuid.NewString()
	return machine.Spec{InstanceID: id, NodeID: uuid.NewString(), Host: "node-" + id[:8], Options: machine.Options{Region: libvirt.Region, Type: libvirt.SmallType, Image: libvirt.DefaultImage}}
}

func boot(context.Context) (activities.Boot, error) {
	return activities.Boot{UserData: []byte("#!/bin/sh\n# " + reference), BaseURL: "https://node-api.test:8443", Reference: reference}, nil
}

func (r *rig) virsh(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	out, err := r.Runner.Run(ctx, args, []byte(stdin))
	require.NoError(t, err)
	require.Zero(t, out.Exit, "%s", out.Stderr)
	return string(out.Stdout)
}

// Machines implements provider.Outside. Other tests use the same host, so it lists the domains
// whose consoles or images are in this test's folder.
func (r *rig) Machines(t *testing.T) []string {
	t.Helper()
	var ids []string
	for name := range strings.FieldsSeq(r.virsh(t, "", "list", "--all", "--name")) {
		// The domain of another test may have ended meanwhile.
		out, err := r.Runner.Run(context.WithoutCancel(t.Context()), []string{"dumpxml", name}, nil)
		require.NoError(t, err)
		if text := string(out.Stdout); strings.Contains(text, r.state) {
			_, id, _ := strings.Cut(text, "<uuid>")
			id, _, _ = strings.Cut(id, "</uuid>")
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Leftovers implements provider.Outside.
func (r *rig) Leftovers(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, dir := range []string{"consoles", "boot", "disks"} {
		entries, err := os.ReadDir(filepath.Join(r.state, dir))
		if os.IsNotExist(err) { // no machine was created
			continue
		}
		require.NoError(t, err)
		for _, e := range entries {
			found = append(found, filepath.Join(dir, e.Name()))
		}
	}
	return found
}

// Foreign implements provider.Outside.
func (r *rig) Foreign(t *testing.T, host string) string {
	t.Helper()
	id := uuid.NewString()
	r.virsh(t, fmt.Sprintf("<domain type='qemu'><name>%s</name><uuid>%s</uuid><memory unit='MiB'>64</memory><vcpu>1</vcpu>"+
		"<os><type arch='x86_64' machine='q35'>hvm</type><kernel>%s/kernel</kernel></os></domain>", host, id, r.state), "define", "/dev/stdin")
	return id
}

func (r *rig) name(t *testing.T, id string) string {
	t.Helper()
	for name := range strings.FieldsSeq(r.virsh(t, "", "list", "--all", "--name")) {
		out, err := r.Runner.Run(context.WithoutCancel(t.Context()), []string{"dumpxml", name}, nil)
		require.NoError(t, err)
		if strings.Contains(string(out.Stdout), "<uuid>"+id+"</uuid>") {
			return name
		}
	}
	require.FailNow(t, "there is no domain", id)
	return ""
}

// PoweredOn implements provider.Outside.
func (r *rig) PoweredOn(t *testing.T, id string) bool {
	t.Helper()
	return !strings.Contains(r.virsh(t, "", "domstats", "--state", r.name(t, id)), "state.state=5")
}

// Stop implements provider.Outside.
func (r *rig) Stop(t *testing.T, id string) {
	t.Helper()
	if r.PoweredOn(t, id) {
		r.virsh(t, "", "destroy", r.name(t, id))
	}
}

// Destroy implements provider.Outside. A transient domain ends when it stops.
func (r *rig) Destroy(t *testing.T, id string) {
	t.Helper()
	name := r.name(t, id)
	r.Stop(t, id)
	if slices.Contains(strings.Fields(r.virsh(t, "", "list", "--all", "--name")), name) {
		r.virsh(t, "", "undefine", name)
	}
}

// Break implements provider.Outside.
func (r *rig) Break(t *testing.T, id string) bool {
	t.Helper()
	return r.recording != nil && r.recording.Crash(r.name(t, id))
}

// Print replaces what the machine has written to its console, which is one line.
func (r *rig) Print(t *testing.T, id string, data []byte) {
	t.Helper()
	path := filepath.Join(r.state, "consoles", id+".log")
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(path)
		return err == nil && strings.Contains(string(text), "\n")
	}, time.Minute, 20*time.Millisecond)
	require.NoError(t, os.WriteFile(path, data, 0o600))
}

// faulty is a runner that fails on request.
type faulty struct {
	libvirt.Runner
	mu    sync.Mutex
	call  provider.Call
	mode  provider.Mode
	left  int
	later sync.WaitGroup
	slow  atomic.Int32
}

// Inject implements provider.Faults. No output of a changing command is parsed.
func (f *faulty) Inject(c provider.Call, m provider.Mode, n int) bool {
	changes := c == provider.Create || c == provider.Power || c == provider.Delete
	switch {
	case m == provider.Quota, m == provider.Capacity && c != provider.Create, m == provider.Garbage && changes:
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.call, f.mode, f.left = c, m, n
	return true
}

// Waiting implements provider.Faults.
func (f *faulty) Waiting() bool { return f.slow.Load() > 0 }

// Clear implements provider.Faults.
func (f *faulty) Clear() {
	f.mu.Lock()
	f.left = 0
	f.mu.Unlock()
	f.wait()
}

func (f *faulty) wait() { f.later.Wait() }

// take returns the fault of a command.
func (f *faulty) take(args []string) (provider.Mode, bool) {
	commands := map[provider.Call][]string{
		provider.Create: {"create"}, provider.Describe: {"dumpxml"}, provider.Power: {"start", "destroy", "reset"},
		provider.Console: {"dumpxml"}, provider.Delete: {"destroy", "undefine"}, provider.List: {"list"},
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left == 0 || !slices.Contains(commands[f.call], strings.Fields(args[0])[0]) {
		return "", false
	}
	f.left--
	return f.mode, true
}

// Run implements libvirt.Runner.
func (f *faulty) Run(ctx context.Context, args []string, stdin []byte) (libvirt.Result, error) {
	mode, fails := f.take(args)
	if !fails {
		return f.Runner.Run(ctx, args, stdin)
	}
	failed := func(text string) (libvirt.Result, error) {
		return libvirt.Result{Exit: 1, Stderr: []byte("error: " + strings.ReplaceAll(text, "\n", "\nerror: ") + "\n")}, nil
	}
	const ended = "End of file while reading data: Input/output error"
	switch mode {
	case provider.LostRequest:
		return failed("failed to connect to the hypervisor\nFailed to connect socket to '/run/libvirt-sock': Connection refused")
	case provider.Auth:
		return failed("failed to connect to the hypervisor\nauthentication failed: Failed to start SASL negotiation")
	case provider.Unavailable:
		return failed("Timed out during operation: cannot acquire state change lock (held by monitor=remoteDispatchDomainCreate)")
	case provider.Capacity:
		return failed("Failed to create domain from /dev/stdin\ninternal error: process exited while connecting to monitor: cannot set up guest memory 'pc.ram': Cannot allocate memory")
	case provider.Late:
		f.later.Go(func() {
			<-time.After(50 * time.Millisecond) // the provider is late
			_, _ = f.Runner.Run(context.WithoutCancel(ctx), args, stdin)
		})
		return failed(ended)
	}
	r, err := f.Runner.Run(context.WithoutCancel(ctx), args, stdin)
	switch {
	case err != nil:
		return r, err
	case mode == provider.Slow:
		f.slow.Add(1)
		defer f.slow.Add(-1)
		<-ctx.Done()
		return libvirt.Result{}, ctx.Err()
	case mode == provider.Garbage:
		return libvirt.Result{Stdout: []byte("<domain \x00 garbage")}, nil
	}
	return failed(ended)
}

var errBoot = errors.New("no reference")
