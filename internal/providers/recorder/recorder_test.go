package recorder_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/providers/recorder"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/test/conformance/provider"
	"github.com/gpuaas/gpuaas/test/testkit/providertest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	provider.Run(t, target)
}

// target is a recorder behind faults, with a second one for the same site.
func target(*testing.T) provider.Target {
	site, faults := &recorder.Site{}, &providertest.Faults{}
	return provider.Target{
		Provider: &recorder.Provider{Site: site, Gate: faults.Gate}, Second: &recorder.Provider{Site: site, Gate: faults.Gate},
		Info: recorder.Info(), Spec: spec, Faults: faults, Outside: providertest.Outside{Site: site},
		Secrets: []string{providertest.Secret}, Wait: 10 * time.Second,
	}
}

func spec() machine.Spec {
	id := schema.NewID()
	return machine.Spec{InstanceID: id, NodeID: schema.NewID(), Host: "node-" + id[24:], Options: machine.Options{Region: "local", Type: "small", Image: "default"}}
}

func boot(context.Context) (activities.Boot, error) { return activities.Boot{}, nil }

func TestCalls(t *testing.T) {
	t.Parallel()
	p, s := recorder.New(), spec()
	m, err := p.Create(t.Context(), s, boot)
	require.NoError(t, err)
	require.NoError(t, p.Power(t.Context(), m.Ref, machine.PowerOff))
	_, err = p.Console(t.Context(), m.Ref)
	require.NoError(t, err)
	_, err = p.List(t.Context())
	require.NoError(t, err)
	require.NoError(t, p.Delete(t.Context(), m.Ref))
	_, err = p.Describe(t.Context(), machine.Ref{InstanceID: "unknown"})
	require.Error(t, err)
	require.Equal(t, []recorder.Call{
		{Method: "create", InstanceID: s.InstanceID}, {Method: "power", InstanceID: s.InstanceID}, {Method: "console", InstanceID: s.InstanceID},
		{Method: "list"}, {Method: "delete", InstanceID: s.InstanceID}, {Method: "describe", InstanceID: "unknown", Reason: machine.ReasonMissing},
	}, p.Calls())
}
