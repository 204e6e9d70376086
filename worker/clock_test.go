package worker

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// signerFake counts its signatures.
type signerFake struct{ signed int }

func (f *signerFake) Sign(context.Context, []byte) ([]byte, error) {
	f.signed++
	return []byte("signed"), nil
}

func (f *signerFake) SignRemoval(context.Context, trust.Removal) ([]byte, error) {
	f.signed++
	return []byte("signed"), nil
}

// rotatorFake counts the sets that it signs.
type rotatorFake struct {
	activities.KeyRotator

	signed *int
}

func (f rotatorFake) SignSet(_ context.Context, s trust.StoredSet, _ rotation.Target) (trust.StoredSet, bool, error) {
	*f.signed++
	return s, true, nil
}

func (f rotatorFake) RenewSet(_ context.Context, s trust.StoredSet) (trust.StoredSet, bool, error) {
	*f.signed++
	return s, true, nil
}

// No verifier set is signed with a wrong clock either.
func TestNoSetIsSignedWithAWrongClock(t *testing.T) {
	t.Parallel()
	ahead := -time.Minute
	clocks := daemon.NewClocks(prometheus.NewRegistry())
	clocks.Compare(daemon.ClockOfPostgres, "this worker signs no task", func(context.Context) (time.Time, error) { return time.Now().Add(ahead), nil })
	require.Error(t, clocks.Check(t.Context()))
	var signed int
	r := timelyRotator{rotatorFake{signed: &signed}, clocks}
	_, _, err := r.SignSet(t.Context(), trust.StoredSet{}, rotation.Target{})
	require.Equal(t, lifecycle.ReasonClockSkew, schema.AsError(err).Reason)
	_, _, err = r.RenewSet(t.Context(), trust.StoredSet{})
	require.Equal(t, lifecycle.ReasonClockSkew, schema.AsError(err).Reason)
	require.Zero(t, signed)

	ahead = 0
	require.NoError(t, clocks.Check(t.Context()))
	_, _, err = r.SignSet(t.Context(), trust.StoredSet{}, rotation.Target{})
	require.NoError(t, err)
	_, _, err = r.RenewSet(t.Context(), trust.StoredSet{})
	require.NoError(t, err)
	require.Equal(t, 2, signed)
}

// A worker whose clock differs from the database's signs nothing, and signs again once the
// clocks agree. A clock of Vault that differs does not matter to what it signs.
func TestNothingIsSignedWithAWrongClock(t *testing.T) {
	t.Parallel()
	var ahead time.Duration
	clocks := daemon.NewClocks(prometheus.NewRegistry())
	clocks.Compare(daemon.ClockOfPostgres, "this worker signs no task", func(context.Context) (time.Time, error) { return time.Now().Add(ahead), nil })
	clocks.Compare("vault", "", func(context.Context) (time.Time, error) { return time.Now().Add(time.Hour), nil })
	f := &signerFake{}
	s := timelySigner{f, clocks}
	refused := func(reason string) {
		t.Helper()
		for _, sign := range []func() ([]byte, error){
			func() ([]byte, error) { return s.Sign(t.Context(), []byte("task")) },
			func() ([]byte, error) { return s.SignRemoval(t.Context(), trust.Removal{}) },
		} {
			_, err := sign()
			require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err))
			require.Equal(t, reason, schema.AsError(err).Reason)
		}
		require.Zero(t, f.signed)
	}
	refused("") // not compared yet
	ahead = -time.Minute
	require.Error(t, clocks.Check(t.Context()))
	refused(lifecycle.ReasonClockSkew)
	ahead = 0
	require.Error(t, clocks.Check(t.Context()), "that of Vault")
	_, err := s.Sign(t.Context(), []byte("task"))
	require.NoError(t, err)
	_, err = s.SignRemoval(t.Context(), trust.Removal{})
	require.NoError(t, err)
	require.Equal(t, 2, f.signed)
}
