package maas_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/providers/maas"
	"github.com/gpuaas/gpuaas/internal/providers/maas/maastest"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/test/conformance/provider"
)

func TestConformance(t *testing.T) {
	provider.Run(t, func(t *testing.T) provider.Target {
		t.Helper()
		s := newServer(t)
		source := open(t, s)
		var specs atomic.Int32
		return provider.Target{
			Provider: source.Provider, Info: source.Info, Second: open(t, s).Provider, Wait: time.Minute,
			Spec: func() machine.Spec { return spec(int(specs.Add(1))) },
			// The parts of the key that identify without the secret are credentials too.
			Secrets: strings.Split(s.Key, ":"),
			Faults:  faults{s}, Outside: outside{s},
		}
	})
}

// newServer starts a double with 24 machines in two zones.
func newServer(t *testing.T) *maastest.Server {
	t.Helper()
	var machines []maastest.Machine
	for i := range 24 {
		machines = append(machines, maastest.Machine{Zone: fmt.Sprintf("zone-%d", i%2+1), Pool: "gpu", Tags: []string{"gpuaas", "h100"}, CPUs: 64,
			MemoryMiB: 512 << 10, GPUs: []string{"GH100 [H100 SXM5 80GB]", "GH100 [H100 SXM5 80GB]"}})
	}
	s := maastest.New(maastest.Options{Delays: maastest.Delays{Power: 5 * time.Millisecond, Deploy: 20 * time.Millisecond,
		Erase: 20 * time.Millisecond, Late: 100 * time.Millisecond}}, machines...)
	t.Cleanup(s.Close)
	return s
}

func settings(s *maastest.Server) maas.Settings {
	return maas.Settings{BaseURL: s.BaseURL(), Token: s.Key, Timeout: 30 * time.Second, Installation: "test", Zones: []string{"zone-1", "zone-2"},
		Images: []string{"ubuntu/noble", "ubuntu/unknown"}, Pool: "gpu", Tags: []string{"gpuaas"}, PollPower: 5 * time.Millisecond,
		Types: []maas.Type{{Type: machine.Type{ID: "h100x2", CPUs: 32, MemoryMiB: 256 << 10, GPUs: 2}, Tags: []string{"h100"}}}}
}

func open(t *testing.T, s *maastest.Server) activities.Source {
	t.Helper()
	source, err := maas.New(settings(s))
	require.NoError(t, err)
	return source
}

func spec(n int) machine.Spec {
	return machine.Spec{InstanceID: fmt.Sprintf("00000000-0000-7000-8000-%012d", n), NodeID: fmt.Sprintf("node-%d", n), Host: fmt.Sprintf("gpu-%d", n),
		Options: machine.Options{Region: "zone-1", Type: "h100x2", Image: "ubuntu/noble"}}
}

// faults injects refusals into the allocation and lost responses into the deployment, which makes
// the machine. TestLost has the other combinations.
type faults struct{ *maastest.Server }

func (f faults) Inject(c provider.Call, m provider.Mode, n int) bool {
	fault := maastest.Fault(m)
	switch {
	case m == provider.Quota: // MAAS has no quotas
		return false
	case m == provider.Capacity: // the adapter asks for two machines by name and then for any
		n *= 3
	}
	switch c {
	case provider.Create:
		op := "deploy"
		switch m {
		case provider.LostRequest, provider.Unavailable, provider.Capacity, provider.Auth:
			op = "allocate"
		}
		f.Server.Inject(fault, n, op)
	case provider.Describe:
		f.Server.Inject(fault, n, "list")
	case provider.List:
		f.Server.Inject(fault, n, "list")
	case provider.Console:
		f.Server.Inject(fault, n, "query")
	case provider.Power:
		f.Server.Inject(fault, n, "power_on", "power_off")
	case provider.Delete:
		f.Server.Inject(fault, n, "release")
	}
	return true
}

// outside is the double as an administrator of MAAS sees it.
type outside struct{ *maastest.Server }

func (o outside) Machines(*testing.T) []string  { return o.Used() }
func (o outside) Leftovers(*testing.T) []string { return o.Server.Leftovers() }

func (o outside) Foreign(_ *testing.T, host string) string { return o.Occupy("someone", host, nil) }

func (o outside) Destroy(_ *testing.T, id string) { o.Change(id, maastest.Release) }
func (o outside) Stop(_ *testing.T, id string)    { o.Change(id, maastest.SwitchOff) }

func (o outside) PoweredOn(_ *testing.T, id string) bool { return o.Power(id) == "on" }

func (o outside) Break(_ *testing.T, id string) bool {
	o.Change(id, maastest.FailDeployment)
	return true
}

func (o outside) Explain(_ *testing.T, id, detail string) { o.Server.Explain(id, detail) }
