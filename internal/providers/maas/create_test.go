package maas_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/mail"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/providers/maas"
	"github.com/gpuaas/gpuaas/internal/providers/maas/maastest"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/test/harness"
)

const userData = "#!/bin/sh\necho one-time-reference-of-the-test\n"

func boot(context.Context) (activities.Boot, error) {
	return activities.Boot{UserData: []byte(userData), BaseURL: "https://node-api.test", Reference: "one-time-reference-of-the-test"}, nil
}

// create creates the machine of a spec and waits until it runs.
func create(t *testing.T, p activities.MachineProvider, s machine.Spec) machine.Machine {
	t.Helper()
	_, err := p.Create(t.Context(), s, boot)
	require.NoError(t, err)
	return await(t, p, s, machine.Running)
}

func await(t *testing.T, p activities.MachineProvider, s machine.Spec, want machine.Phase) (m machine.Machine) {
	t.Helper()
	require.Eventually(t, func() bool {
		var err error
		m, err = p.Describe(t.Context(), ref(s))
		return err == nil && m.Phase == want
	}, harness.Timeout, 5*time.Millisecond)
	return m
}

// remove deletes the machine of a spec and waits until MAAS has nothing of it.
func remove(t *testing.T, server *maastest.Server, p activities.MachineProvider, s machine.Spec) {
	t.Helper()
	require.NoError(t, p.Delete(t.Context(), ref(s)))
	require.Eventually(t, func() bool {
		_, err := p.Describe(t.Context(), ref(s))
		return machine.Is(err, machine.ReasonMissing)
	}, harness.Timeout, 5*time.Millisecond)
	require.Empty(t, server.Used())
	require.Empty(t, server.Leftovers())
}

func ref(s machine.Spec) machine.Ref { return machine.Ref{InstanceID: s.InstanceID, Host: s.Host} }

func TestCreateMarksAndDeploysTheMachine(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	p := open(t, server).Provider
	m := create(t, p, spec(1))
	assert.Equal(t, userData, server.UserData(m.ExternalID))
	assert.Equal(t, "gpuaas/test/"+spec(1).InstanceID, server.Agent(m.ExternalID))
	assert.Equal(t, map[string]string{"gpuaas-owner": "test", "gpuaas-instance": spec(1).InstanceID, "gpuaas-host": "gpu-1"}, server.Annotations(m.ExternalID))
	assert.Equal(t, "zone-1", m.Region)
	remove(t, server, p, spec(1))
}

// TestLost fails each request of a creation in each mode. A worker that repeats the creation, as
// after a crash at this request, gets one machine; if there is one before, the list has it.
func TestLost(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"list", "whoami", "allocate", "set_workload_annotations", "deploy"} {
		for _, fault := range []maastest.Fault{maastest.LostRequest, maastest.LostReply, maastest.Late, maastest.Slow, maastest.Garbage, maastest.WrongTypes,
			maastest.Huge, maastest.Unavailable, maastest.Internal, maastest.BadGateway, maastest.Auth, maastest.Forbidden, maastest.Redirect} {
			t.Run(op+"/"+string(fault), func(t *testing.T) {
				t.Parallel()
				server := newServer(t)
				config := settings(server)
				if fault == maastest.Slow {
					config.Timeout = time.Second
				}
				source, err := maas.New(config)
				require.NoError(t, err)
				s := spec(1)
				server.Inject(fault, 1, op)
				_, err = source.Provider.Create(t.Context(), s, boot)
				server.Clear()
				if err != nil {
					e := schema.AsError(err)
					require.NotEmpty(t, e.Reason, "%v", err)
					require.NotEqual(t, machine.ReasonMissing, e.Reason)
					if used := server.Used(); len(used) > 0 {
						require.NotEqual(t, machine.ReasonUnavailable, e.Reason, "a machine is allocated")
						listed, err := open(t, server).Provider.List(t.Context())
						require.NoError(t, err)
						require.Len(t, listed, len(used))
						require.Equal(t, s.InstanceID, listed[0].InstanceID)
					}
				}
				another := open(t, server).Provider // another worker, with the default timeout
				create(t, another, s)
				if fault == maastest.Late {
					require.Eventually(t, func() bool {
						return len(server.Requests()) > 0 && strings.Count(strings.Join(server.Requests(), " "), op) > 1
					}, time.Minute, time.Millisecond)
				}
				require.Len(t, server.Used(), 1)
				remove(t, server, another, s)
			})
		}
	}
}

// TestTwoAllocations: a second machine with the instance's agent name, from a request that
// arrived late, is released by the next creation and by the deletion.
func TestTwoAllocations(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	p, s := open(t, server).Provider, spec(1)
	first := create(t, p, s)
	late := server.Allocate("gpuaas/test/" + s.InstanceID)
	require.Equal(t, first.ExternalID, await(t, p, s, machine.Running).ExternalID)
	listed, err := p.List(t.Context())
	require.NoError(t, err)
	require.Len(t, listed, 2)

	again, err := p.Create(t.Context(), s, boot)
	require.NoError(t, err)
	require.Equal(t, first.ExternalID, again.ExternalID)
	require.Equal(t, []string{first.ExternalID}, server.Used())
	require.Equal(t, "Ready", server.Status(late))

	server.Allocate("gpuaas/test/" + s.InstanceID)
	remove(t, server, p, s)
}

// TestMarksLost: a machine whose annotations were never set, and whose agent name MAAS cleared, is
// found by the event of its allocation.
func TestMarksLost(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	p, s := open(t, server).Provider, spec(1)
	id := server.Allocate("gpuaas/test/" + s.InstanceID)
	server.Change(id, maastest.MarkBroken)
	m, err := p.Describe(t.Context(), ref(s))
	require.NoError(t, err)
	require.Equal(t, machine.Failed, m.Phase)
	require.Equal(t, id, m.ExternalID)
	remove(t, server, p, s)
}

func TestForeignMachinesOfTheAccount(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	p := open(t, server).Provider
	server.Occupy("", "", nil)
	server.Occupy("", "", map[string]string{"juju-model-uuid": "1"})
	server.Occupy("", "", map[string]string{"gpuaas-owner": "other", "gpuaas-instance": spec(1).InstanceID})
	server.Allocate("gpuaas/other/" + spec(1).InstanceID)
	listed, err := p.List(t.Context())
	require.NoError(t, err)
	require.Empty(t, listed)
	_, err = p.Describe(t.Context(), ref(spec(1)))
	require.True(t, machine.Is(err, machine.ReasonMissing), "%v", err)
	require.NoError(t, p.Delete(t.Context(), ref(spec(1))))
	require.Len(t, server.Used(), 4)
}

// TestUnfiltered: a server that ignores the filter by agent name loses no foreign machine.
func TestUnfiltered(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	p := open(t, server).Provider
	kept := create(t, p, spec(1))
	server.Occupy("someone", "", nil)
	server.Occupy("", "", nil)
	server.Inject(maastest.Unfiltered, 4, "list")
	require.NoError(t, p.Delete(t.Context(), ref(spec(2))))
	_, err := p.Describe(t.Context(), ref(spec(2)))
	require.True(t, machine.Is(err, machine.ReasonMissing), "%v", err)
	require.Len(t, server.Used(), 3)
	require.Equal(t, "Deployed", server.Status(kept.ExternalID))
}

func TestConstraints(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	p := open(t, server).Provider
	for i := range 12 { // the machines of the zone
		_, err := p.Create(t.Context(), spec(i+1), boot)
		require.NoError(t, err)
	}
	_, err := p.Create(t.Context(), spec(13), boot)
	require.True(t, machine.Is(err, machine.ReasonCapacity), "%v", err)
	other := spec(13)
	other.Region = "zone-2"
	require.Equal(t, "zone-2", create(t, p, other).Region)

	spot, unknown := spec(14), spec(15)
	spot.Spot, spot.Region = true, "zone-2"
	_, err = p.Create(t.Context(), spot, boot)
	require.True(t, machine.Is(err, machine.ReasonRejected), "%v", err)
	unknown.Image, unknown.Region = "ubuntu/unknown", "zone-2"
	_, err = p.Create(t.Context(), unknown, boot)
	require.True(t, machine.Is(err, machine.ReasonRejected), "%v", err)
	require.ErrorContains(t, err, "not a valid distro_series")
}

func TestErase(t *testing.T) {
	t.Parallel()
	for erase, want := range map[maas.Erase]map[string]string{
		maas.EraseNone: {}, maas.EraseFull: {"erase": "true"},
		maas.EraseQuick:  {"erase": "true", "quick_erase": "true"},
		maas.EraseSecure: {"erase": "true", "secure_erase": "true"},
	} {
		t.Run(string(erase), func(t *testing.T) {
			t.Parallel()
			server := newServer(t)
			config := settings(server)
			config.Erase = erase
			source, err := maas.New(config)
			require.NoError(t, err)
			m := create(t, source.Provider, spec(1))
			require.NoError(t, source.Provider.Delete(t.Context(), ref(spec(1))))
			require.NoError(t, source.Provider.Delete(t.Context(), ref(spec(1))), "while MAAS erases")
			require.Equal(t, want, server.Erased(m.ExternalID))
			remove(t, server, source.Provider, spec(1))
		})
	}
}

func TestBootFails(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	p, missing := open(t, server).Provider, errors.New("no reference")
	ctx, cancel := context.WithCancel(t.Context())
	_, err := p.Create(ctx, spec(1), func(context.Context) (activities.Boot, error) { cancel(); return activities.Boot{}, missing })
	require.ErrorIs(t, err, missing)
	require.Empty(t, server.Used())
}

// TestPowerNeverDeploys: MAAS deploys an allocated machine that is switched on.
func TestPowerNeverDeploys(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	p, s := open(t, server).Provider, spec(1)
	id := server.Allocate("gpuaas/test/" + s.InstanceID)
	for _, change := range []machine.Power{machine.PowerOn, machine.PowerOff, machine.PowerReset} {
		err := p.Power(t.Context(), ref(s), change)
		require.True(t, machine.Is(err, machine.ReasonStarting), "%v", err)
	}
	require.Equal(t, "Allocated", server.Status(id))
	require.Equal(t, "off", server.Power(id))
}

func TestPowerFollowsThePhase(t *testing.T) {
	t.Parallel()
	server := maastest.New(maastest.Options{Delays: maastest.Delays{Power: time.Millisecond, Erase: time.Hour}}, maastest.Machine{Zone: "zone-1", Pool: "gpu", Tags: []string{"gpuaas"}})
	t.Cleanup(server.Close)
	p, s := open(t, server).Provider, spec(1)
	s.Type = ""
	m := create(t, p, s)
	server.Change(m.ExternalID, maastest.FailDeployment)
	require.True(t, machine.Is(p.Power(t.Context(), ref(s), machine.PowerOn), machine.ReasonFailed))
	require.NoError(t, p.Power(t.Context(), ref(s), machine.PowerOff), "a failed machine can be switched off")
	require.NoError(t, p.Delete(t.Context(), ref(s)))
	require.True(t, machine.Is(p.Power(t.Context(), ref(s), machine.PowerOn), machine.ReasonDeleting))
}

// clock is the time of a MAAS double, which the test moves while the double handles requests.
type clock struct {
	start time.Time
	moved atomic.Int64 // nanoseconds
}

func newClock(start time.Time) *clock { return &clock{start: start} }

func (c *clock) read() time.Time { return c.start.Add(time.Duration(c.moved.Load())) }

func (c *clock) add(d time.Duration) { c.moved.Add(int64(d)) }

// TestResetWaits: the reset of a machine that does not report that it is off may have had an effect.
func TestResetWaits(t *testing.T) {
	t.Parallel()
	now := newClock(time.Now())
	server := maastest.New(maastest.Options{Now: now.read, Delays: maastest.Delays{Power: time.Hour}},
		maastest.Machine{Zone: "zone-1", Pool: "gpu", Tags: []string{"gpuaas"}})
	t.Cleanup(server.Close)
	p, s := open(t, server).Provider, spec(1)
	s.Type = ""
	_, err := p.Create(t.Context(), s, boot)
	require.NoError(t, err)
	now.add(time.Hour)
	await(t, p, s, machine.Running)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reset := make(chan error, 1)
	go func() { reset <- p.Power(ctx, ref(s), machine.PowerReset) }()
	harness.Eventually(t, "MAAS is asked to power the machine off and is read again", func() bool {
		all := server.Requests()
		off := slices.IndexFunc(all, func(r string) bool { return strings.Contains(r, "power_off") })
		return off >= 0 && len(all) > off+1
	})
	cancel()
	err = harness.Receive(t, "the end of the reset", reset)
	require.True(t, machine.Is(err, machine.ReasonAmbiguous), "%v", err)
	now.add(time.Hour)
	await(t, p, s, machine.Stopped)
	require.NoError(t, p.Power(t.Context(), ref(s), machine.PowerReset), "the repeated reset switches it on")
	now.add(time.Hour)
	await(t, p, s, machine.Running)
}

func TestHooksBootTheMachine(t *testing.T) {
	t.Parallel()
	on, off := make(chan string, 4), make(chan string, 4)
	server := maastest.New(maastest.Options{PowerOn: func(m maastest.Machine, data []byte) { on <- m.SystemID + string(data) },
		PowerOff: func(m maastest.Machine) { off <- m.SystemID }}, maastest.Machine{SystemID: "abc", Zone: "zone-1", Pool: "gpu", Tags: []string{"gpuaas"}})
	t.Cleanup(server.Close)
	p, s := open(t, server).Provider, spec(1)
	s.Type = ""
	create(t, p, s)
	require.Equal(t, "abc"+userData, <-on)
	require.NoError(t, p.Power(t.Context(), ref(s), machine.PowerReset))
	require.Equal(t, "abc", <-off)
	require.Equal(t, "abc"+userData, <-on)
	require.NoError(t, p.Delete(t.Context(), ref(s)))
	require.Equal(t, "abc", <-off)
}

func TestManualClock(t *testing.T) {
	t.Parallel()
	now := newClock(time.Unix(1_800_000_000, 0))
	server := maastest.New(maastest.Options{Now: now.read, Delays: maastest.Delays{Power: time.Minute, Deploy: 10 * time.Minute}},
		maastest.Machine{Zone: "zone-1", Pool: "gpu", Tags: []string{"gpuaas"}})
	t.Cleanup(server.Close)
	p, s := open(t, server).Provider, spec(1)
	s.Type = ""
	m, err := p.Create(t.Context(), s, boot)
	require.NoError(t, err)
	require.Equal(t, machine.Creating, m.Phase)
	now.add(10 * time.Minute)
	server.Tick()
	require.Equal(t, "Deploying", server.Status(m.ExternalID))
	now.add(time.Minute)
	require.Equal(t, machine.Running, await(t, p, s, machine.Running).Phase)
}

func TestSSHKeys(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	s := spec(1)
	s.SSHKeys = []string{"ssh-ed25519 AAAA operator"}
	m := create(t, open(t, server).Provider, s)
	archive, err := mail.ReadMessage(strings.NewReader(server.UserData(m.ExternalID)))
	require.NoError(t, err)
	_, params, err := mime.ParseMediaType(archive.Header.Get("Content-Type"))
	require.NoError(t, err)
	parts := multipart.NewReader(archive.Body, params["boundary"])
	script, err := parts.NextPart()
	require.NoError(t, err)
	text, err := io.ReadAll(script)
	require.NoError(t, err)
	require.Equal(t, userData, string(text))
	require.Equal(t, "text/x-shellscript", script.Header.Get("Content-Type"))
	config, err := parts.NextPart()
	require.NoError(t, err)
	text, err = io.ReadAll(config)
	require.NoError(t, err)
	var keys map[string][]string
	require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(string(text), "#cloud-config\n")), &keys))
	require.Equal(t, map[string][]string{"ssh_authorized_keys": s.SSHKeys}, keys)
}

func TestFacts(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	p := open(t, server).Provider.(*maas.Provider)
	create(t, p, spec(1))
	f, err := p.Facts(t.Context(), ref(spec(1)))
	require.NoError(t, err)
	assert.Equal(t, 64, f.CPUs)
	assert.Equal(t, int64(512)<<30, f.MemoryBytes)
	assert.Equal(t, "amd64", f.Arch)
	assert.Equal(t, "Test CPU", f.CPUModel)
	require.Len(t, f.GPUs, 2)
	assert.Equal(t, "NVIDIA Corporation GH100 [H100 SXM5 80GB]", f.GPUs[1].Model)
	require.Len(t, f.NICs, 1)
	assert.Equal(t, []string{"10.0.0.5"}, f.NICs[0].Addresses)
	require.Len(t, f.Disks, 1)
	assert.Equal(t, int64(512110190592), f.Disks[0].SizeBytes)
	_, err = p.Facts(t.Context(), ref(spec(2)))
	require.True(t, machine.Is(err, machine.ReasonMissing), "%v", err)
}
