package machine_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
)

func TestOptionsAllow(t *testing.T) {
	t.Parallel()
	has := machine.Options{Region: "r", Type: "t", SSHKeys: []string{"k"}}
	for _, o := range []machine.Options{{}, {Region: "r"}, {Type: "t", SSHKeys: []string{"k"}}} {
		require.True(t, has.Allows(o), "%v", o)
	}
	for _, o := range []machine.Options{{Region: "x"}, {Type: "x"}, {Image: "x"}, {Spot: true}, {SSHKeys: []string{"x"}}} {
		require.False(t, has.Allows(o), "%v", o)
	}
}

func TestValidOptions(t *testing.T) {
	t.Parallel()
	require.True(t, machine.Options{}.Valid())
	require.False(t, machine.Options{}.Given())
	good := machine.Options{Region: "region-local-qemu", Type: "a/b", Image: "ubuntu/24.04", Spot: true, SSHKeys: []string{"ssh-ed25519 AAAA me"}}
	require.True(t, good.Valid())
	require.True(t, good.Given())
	for _, o := range []machine.Options{{Region: "a b"}, {Type: strings.Repeat("x", 65)}, {Image: "a;b"}, {SSHKeys: []string{"a\nb"}},
		{SSHKeys: []string{strings.Repeat("x", 1025)}}, {SSHKeys: slices.Repeat([]string{"k"}, 17)}} {
		require.False(t, o.Valid(), "%v", o)
		require.True(t, o.Given())
	}
}

// TestProblems: each reason has a kind, a cause and a next step, and only those that may end by
// waiting are retried.
func TestProblems(t *testing.T) {
	t.Parallel()
	cause := errors.New("secret of the library")
	for _, p := range machine.Problems() {
		require.NotEmpty(t, p.Means, p.Reason)
		require.NotEmpty(t, p.Next, p.Reason)
		e := machine.Wrap(p.Reason, cause, "no luck with %s", "gpu-17")
		require.Equal(t, p.Kind, e.Kind)
		require.Equal(t, "no luck with gpu-17", e.Message)
		require.ErrorIs(t, e, cause)
		require.True(t, machine.Is(e, p.Reason))
		require.False(t, machine.Is(e, "other"))
		retried := []string{machine.ReasonUnavailable, machine.ReasonAmbiguous, machine.ReasonStarting, machine.ReasonDeleting}
		require.Equal(t, p.Kind == schema.KindServiceUnavailable, p.Kind.Info().Retry, p.Reason)
		if p.Kind.Info().Retry {
			require.Contains(t, retried, p.Reason)
		}
	}
	require.False(t, machine.Is(nil, machine.ReasonMissing))
	require.Equal(t, schema.KindInternal, machine.Errorf("unknown", "x").Kind)
}

// TestOffers: a provider has a machine only with the options that its catalog lists.
func TestOffers(t *testing.T) {
	t.Parallel()
	i := machine.Info{Name: "acme", Creates: true, Catalog: machine.Catalog{Regions: []string{"east", "west"}, Spot: true, TakesSSHKeys: true,
		Types: []machine.Type{{ID: "a1"}, {ID: "b1", Regions: []string{"west"}}}}}
	for _, o := range []machine.Options{{}, {Region: "east", Type: "a1", Spot: true}, {Region: "west", Type: "b1"}, {Type: "b1"}, {SSHKeys: []string{"k"}}} {
		require.NoError(t, i.Check(o), "%v", o)
	}
	for message, o := range map[string]machine.Options{
		`provider "acme" has no region "north": it has east, west`: {Region: "north"},
		`provider "acme" has no type "b1": it has a1`:              {Region: "east", Type: "b1"},
		`provider "acme" has no type "c1": it has a1, b1`:          {Type: "c1"},
		`provider "acme" has no images to choose from`:             {Image: "ubuntu"},
	} {
		err := schema.AsError(i.Check(o))
		require.Equal(t, schema.KindInvalidRequest, err.Kind)
		require.Equal(t, machine.ReasonNotOffered, err.Reason)
		require.Equal(t, message, err.Message)
		require.NotEmpty(t, err.Next)
	}
	require.Error(t, machine.Info{Name: "plain"}.Check(machine.Options{Spot: true}))
	require.Error(t, machine.Info{Name: "plain"}.Check(machine.Options{SSHKeys: []string{"k"}}))
}

// TestTypeFor: without a type, a node gets the first one that satisfies its SKU.
// TestChosen: what was asked for precedes what fits, and that the defaults.
func TestChosen(t *testing.T) {
	t.Parallel()
	i := machine.Info{Catalog: machine.Catalog{Regions: []string{"east", "west"}, Images: []string{"noble", "jammy"}, Spot: true, TakesSSHKeys: true,
		Types:    []machine.Type{{ID: "small", Regions: []string{"east"}}, {ID: "large"}, {ID: "huge", Regions: []string{"west"}}},
		Defaults: machine.Options{Region: "east", Type: "small", Image: "noble"}}}
	require.Equal(t, i.Defaults, i.Chosen(machine.Options{}, ""))
	require.Equal(t, machine.Options{Region: "east", Type: "large", Image: "noble", Spot: true}, i.Chosen(machine.Options{Spot: true}, "large"))
	asked := machine.Options{Region: "west", Type: "huge", Image: "jammy", SSHKeys: []string{"k"}}
	require.Equal(t, asked, i.Chosen(asked, "large"))
	require.Equal(t, machine.Options{Type: "huge", Image: "noble"}, i.Chosen(machine.Options{Type: "huge"}, ""), "the default region does not have it")
	require.Equal(t, machine.Options{Region: "west", Image: "noble"}, i.Chosen(machine.Options{Region: "west"}, ""), "the region does not have the default type")
	require.Equal(t, machine.Options{Type: "large"}, machine.Info{}.Chosen(machine.Options{}, "large"))
}

func TestTypeFor(t *testing.T) {
	t.Parallel()
	i := machine.Info{Catalog: machine.Catalog{Types: []machine.Type{{ID: "small", CPUs: 1, MemoryMiB: 512}, {ID: "gpu", CPUs: 8, MemoryMiB: 1024, GPUs: 1, Regions: []string{"west"}},
		{ID: "large", CPUs: 2, MemoryMiB: 4096}}}}
	for want, tc := range map[string]struct {
		region     string
		cpus, gpus int
		memory     int64
	}{"small": {memory: 256 << 20, cpus: 1}, "large": {memory: 512 << 20, cpus: 1, region: "east"}, "gpu": {gpus: 1}, "": {cpus: 16}} {
		require.Equal(t, want, i.TypeFor(tc.region, tc.cpus, tc.gpus, tc.memory))
	}
	require.Empty(t, i.TypeFor("east", 1, 1, 0))
}
