package libvirt_test

import (
	"context"
	"os"
	"path/filepath"
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
)

func running(t *testing.T, r *rig, s machine.Spec) machine.Machine {
	t.Helper()
	m, err := r.provider.Create(t.Context(), s, boot)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		m, err = r.provider.Describe(t.Context(), machine.Ref{InstanceID: s.InstanceID})
		return err == nil && m.Phase == machine.Running
	}, 20*time.Second, 20*time.Millisecond)
	return m
}

func TestLifecycle(t *testing.T) {
	t.Parallel()
	for _, h := range hosts() {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			r := h.open(t)
			s := spec()
			ref := machine.Ref{InstanceID: s.InstanceID, ExternalID: s.InstanceID, Host: s.Host, Region: s.Region}
			m := running(t, r, s)
			require.Equal(t, ref, m.Ref)
			require.Equal(t, libvirt.SmallType, m.Type)
			require.WithinDuration(t, time.Now(), m.CreatedAt, time.Minute)
			require.Equal(t, []string{"consoles/" + s.InstanceID + ".log", "disks/" + s.InstanceID + ".img"}, r.Leftovers(t), "the boot file is removed")

			all, err := r.provider.List(t.Context())
			require.NoError(t, err)
			require.Equal(t, []machine.Machine{m}, all)
			require.Eventually(t, func() bool {
				text, err := r.provider.Console(t.Context(), ref)
				return err == nil && len(text) > 0
			}, 20*time.Second, 50*time.Millisecond)

			for _, p := range []machine.Power{machine.PowerOn, machine.PowerReset, machine.PowerOff, machine.PowerOff} {
				require.NoError(t, r.provider.Power(t.Context(), ref, p), p)
			}
			m, err = r.provider.Describe(t.Context(), ref)
			require.NoError(t, err)
			require.Equal(t, machine.Stopped, m.Phase)
			require.NoError(t, r.provider.Power(t.Context(), ref, machine.PowerReset))
			require.True(t, r.PoweredOn(t, s.InstanceID))

			require.NoError(t, r.provider.Delete(t.Context(), ref))
			require.NoError(t, r.provider.Delete(t.Context(), ref))
			require.Empty(t, r.Machines(t))
			require.Empty(t, r.Leftovers(t))
			_, err = r.provider.Describe(t.Context(), ref)
			require.True(t, machine.Is(err, machine.ReasonMissing), err)
			_, err = r.provider.Console(t.Context(), ref)
			require.True(t, machine.Is(err, machine.ReasonMissing), err)
		})
	}
}

// The reference is in no definition, neither stored nor of the running domain, and in no file
// once the domain runs.
func TestReferenceIsNotStored(t *testing.T) {
	t.Parallel()
	for _, h := range hosts() {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			r := h.open(t)
			s := spec()
			running(t, r, s)
			name := r.name(t, s.InstanceID)
			require.NotContains(t, r.virsh(t, "", "dumpxml", name), reference)
			if r.recording == nil {
				require.Contains(t, r.virsh(t, "", "dumpxml", name), "fwcfg")
				require.NotContains(t, r.virsh(t, "", "dumpxml", "--inactive", name), "fwcfg")
			}
			require.NoError(t, filepath.WalkDir(r.state, func(path string, d os.DirEntry, err error) error {
				require.NoError(t, err)
				if !d.IsDir() && filepath.Ext(path) != ".img" { // the disk, which the provider creates empty
					text, err := os.ReadFile(path)
					require.NoError(t, err)
					require.NotContains(t, string(text), reference, path)
				}
				return nil
			}))
		})
	}
}

func TestConcurrentCreate(t *testing.T) {
	t.Parallel()
	for _, h := range hosts() {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			r := h.open(t)
			s := spec()
			var boots atomic.Int32
			counted := func(ctx context.Context) (activities.Boot, error) { boots.Add(1); return boot(ctx) }
			var group sync.WaitGroup
			for i := range 6 {
				p := []*libvirt.Provider{r.provider, r.second}[i%2]
				group.Go(func() {
					m, err := p.Create(t.Context(), s, counted)
					if err != nil || m.ExternalID != s.InstanceID {
						t.Errorf("%v, %v", m, err)
					}
				})
			}
			group.Wait()
			require.EqualValues(t, 1, boots.Load())
			require.Equal(t, []string{s.InstanceID}, r.Machines(t))
		})
	}
}

// A worker that ends between virsh create and virsh define leaves a transient domain.
func TestCreateContinues(t *testing.T) {
	t.Parallel()
	for _, h := range hosts() {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			r := h.open(t)
			s := spec()
			require.True(t, r.Inject(provider.Create, provider.LostReply, 1))
			_, err := r.provider.Create(t.Context(), s, boot)
			require.True(t, machine.Is(err, machine.ReasonAmbiguous), err)
			require.Equal(t, []string{s.InstanceID}, r.Machines(t))
			m, err := r.second.Create(t.Context(), s, func(context.Context) (activities.Boot, error) {
				t.Error("the machine exists")
				return activities.Boot{}, errBoot
			})
			require.NoError(t, err)
			require.Equal(t, s.InstanceID, m.ExternalID)
			running(t, r, s)
			require.NoError(t, r.provider.Power(t.Context(), m.Ref, machine.PowerOff))
			require.Equal(t, []string{s.InstanceID}, r.Machines(t), "the domain is persistent")
			require.NotContains(t, strings.Join(r.Leftovers(t), " "), "boot/")
		})
	}
}

func TestFailedCreateLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, h := range hosts() {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			r := h.open(t)
			s := spec()
			_, err := r.provider.Create(t.Context(), s, func(context.Context) (activities.Boot, error) { return activities.Boot{}, errBoot })
			require.ErrorIs(t, err, errBoot)
			require.True(t, r.Inject(provider.Create, provider.Capacity, 1))
			_, err = r.provider.Create(t.Context(), s, boot)
			require.True(t, machine.Is(err, machine.ReasonCapacity), err)
			require.Empty(t, r.Machines(t))
			require.Empty(t, r.Leftovers(t))
		})
	}
}

func TestForeignDomains(t *testing.T) {
	t.Parallel()
	for _, h := range hosts() {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			r := h.open(t)
			s := spec()
			foreign := r.Foreign(t, "gpuaas-"+s.InstanceID)
			_, err := r.provider.Create(t.Context(), s, boot)
			require.True(t, machine.Is(err, machine.ReasonRejected), err)
			_, err = r.provider.Describe(t.Context(), machine.Ref{InstanceID: s.InstanceID})
			require.True(t, machine.Is(err, machine.ReasonMissing), err)
			_, err = r.provider.Describe(t.Context(), machine.Ref{InstanceID: s.InstanceID, ExternalID: foreign})
			require.True(t, machine.Is(err, machine.ReasonMissing), err)
			require.NoError(t, r.provider.Delete(t.Context(), machine.Ref{InstanceID: s.InstanceID, ExternalID: foreign}))
			require.Equal(t, []string{foreign}, r.Machines(t))
			all, err := r.provider.List(t.Context())
			require.NoError(t, err)
			require.Empty(t, all)
		})
	}
}

func TestListIsTwoCommands(t *testing.T) {
	t.Parallel()
	r := recorded(t)
	first, second := spec(), spec()
	running(t, r, first)
	running(t, r, second)
	r.Foreign(t, "foreign")
	calls := len(r.recording.Commands())
	all, err := r.provider.List(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.Len(t, r.recording.Commands()[calls:], 5, "one list, and one call that shows both domains")
}

func TestRejectedSpecs(t *testing.T) {
	t.Parallel()
	r := recorded(t)
	for name, change := range map[string]func(*machine.Spec){
		"region": func(s *machine.Spec) { s.Region = "mars" },
		"type":   func(s *machine.Spec) { s.Type = "large" },
		"image":  func(s *machine.Spec) { s.Image = "debian" },
		"spot":   func(s *machine.Spec) { s.Spot = true },
		"host":   func(s *machine.Spec) { s.Host = "../x" },
		"long":   func(s *machine.Spec) { s.Host = strings.Repeat("x", 65) },
		"line":   func(s *machine.Spec) { s.Host = "a\n" },
		"id":     func(s *machine.Spec) { s.InstanceID = "x; destroy y" },
		"case":   func(s *machine.Spec) { s.InstanceID = strings.ToUpper(uuid.NewString()) },
	} {
		s := spec()
		change(&s)
		_, err := r.provider.Create(t.Context(), s, boot)
		require.True(t, machine.Is(err, machine.ReasonRejected), "%s: %v", name, err)
	}
	require.Empty(t, r.recording.Commands())
}

func TestDisabled(t *testing.T) {
	t.Parallel()
	p, err := libvirt.New(libvirt.Settings{})
	require.NoError(t, err)
	require.NotEmpty(t, p.Source().Disabled)
	s := spec()
	ref := machine.Ref{InstanceID: s.InstanceID}
	_, created := p.Create(t.Context(), s, boot)
	_, described := p.Describe(t.Context(), ref)
	_, console := p.Console(t.Context(), ref)
	_, list := p.List(t.Context())
	for _, err := range []error{created, described, console, list, p.Delete(t.Context(), ref), p.Power(t.Context(), ref, machine.PowerOn)} {
		require.True(t, machine.Is(err, machine.ReasonDisabled), err)
	}
}

func TestMissingImage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p, err := libvirt.NewWithRunner(libvirt.Settings{Mode: libvirt.Real, Owner: "test", StateDir: dir, ImageBase: dir, NetbootPort: 8470,
		IPXE: filepath.Join(dir, "ipxe")}, libvirt.NewRecording())
	require.NoError(t, err)
	for _, missing := range [][2]string{{libvirt.KernelFile, "./task vm-image"}, {libvirt.InitramfsFile, "./task vm-image"}, {"ipxe", "package ipxe"}} {
		file := filepath.Join(dir, missing[0])
		_, err = p.Create(t.Context(), spec(), boot)
		require.True(t, machine.Is(err, machine.ReasonImage), err)
		require.ErrorContains(t, err, file)
		require.ErrorContains(t, err, missing[1])
		require.NoError(t, os.WriteFile(file, nil, 0o600))
	}
	_, err = p.Create(t.Context(), spec(), boot)
	require.NoError(t, err)
}

func TestFailedMachine(t *testing.T) {
	t.Parallel()
	r := recorded(t)
	s := spec()
	running(t, r, s)
	require.True(t, r.Break(t, s.InstanceID))
	m, err := r.provider.Describe(t.Context(), machine.Ref{InstanceID: s.InstanceID})
	require.NoError(t, err)
	require.Equal(t, machine.Failed, m.Phase)
}

func TestMissingProgram(t *testing.T) {
	t.Parallel()
	p, err := libvirt.New(libvirt.Settings{Mode: libvirt.Real, Owner: "test", StateDir: t.TempDir(), ImageBase: "/", Virsh: "/nonexistent/virsh"})
	require.NoError(t, err)
	require.True(t, machine.Is(p.Delete(t.Context(), machine.Ref{InstanceID: uuid.NewString()}), machine.ReasonUnavailable))
}

func TestSettings(t *testing.T) {
	t.Parallel()
	_, err := libvirt.New(libvirt.Settings{Mode: "on", QEMUUser: -1, DomainType: "xen", StateDir: "state", NetbootPort: 70000, IPXE: "ipxe",
		Hosts: map[string]string{"api": "here"}})
	require.EqualError(t, err, "libvirt provider: GPUAAS_LIBVIRT_HOSTS: the address \"here\" of host \"api\" is not an IP address; "+
		"GPUAAS_LIBVIRT_IPXE: \"ipxe\" is not an absolute path; GPUAAS_LIBVIRT_NETBOOT_PORT: 70000 is not a port from 1 to 65535; "+
		"GPUAAS_LIBVIRT_QEMU_UID: -1 is not the ID of a user; the domain type is \"xen\", not qemu or kvm; "+
		"the mode is \"on\", not real, recorder or disabled; the owner is empty; the state folder \"state\" is not an absolute path")
}
