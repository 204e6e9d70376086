package manual_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/providers/manual"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/test/conformance/provider"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	provider.Run(t, func(*testing.T) provider.Target {
		source := manual.New()
		return provider.Target{Provider: source.Provider, Second: source.Provider, Info: source.Info, Spec: spec, Wait: 10 * time.Second}
	})
}

func spec() machine.Spec {
	id := schema.NewID()
	return machine.Spec{InstanceID: id, NodeID: schema.NewID(), Host: "gpu-" + id[24:]}
}

// TestHosts has names that the inventory accepts.
func TestHosts(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"gpu-17", "gpu-17.rack4.example.com", "10.0.0.17", "2001:db8::17"} {
		s := spec()
		s.Host = host
		m, err := manual.Provider{}.Create(t.Context(), s, noBoot(t))
		require.NoError(t, err)
		require.Equal(t, machine.Machine{Ref: machine.Ref{InstanceID: s.InstanceID, ExternalID: host, Host: host}, Phase: machine.Running}, m)
	}
}

func TestInstructions(t *testing.T) {
	t.Parallel()
	r := machine.Ref{InstanceID: "i-1", Host: "gpu-17"}
	for change, want := range map[machine.Power]string{
		machine.PowerOn:    "switch the machine gpu-17 on at its power supply or BMC",
		machine.PowerOff:   "switch the machine gpu-17 off at its power supply or BMC",
		machine.PowerReset: "reset the machine gpu-17 at its BMC, or switch it off and on at its power supply",
	} {
		require.EqualError(t, manual.Provider{}.Power(t.Context(), r, change), want)
	}
	_, err := manual.Provider{}.Console(t.Context(), r)
	require.EqualError(t, err, "read the console of the machine gpu-17 at its BMC")
}

func noBoot(t *testing.T) activities.BootData {
	t.Helper()
	return func(context.Context) (activities.Boot, error) {
		t.Error("boot data of a machine that exists")
		return activities.Boot{}, nil
	}
}
