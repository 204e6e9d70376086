package activities_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

// attempts is a port that stores rungs, or fails.
type attempts struct {
	activities.Repairs
	err error
}

func (a *attempts) RecordAttempt(context.Context, activities.Fence, recovery.Attempt) (string, error) {
	return "boot-1", a.err
}

// TestOnAttempt: the end of a rung is observed once it is stored, and its beginning is not.
func TestOnAttempt(t *testing.T) {
	t.Parallel()
	var seen []string
	port := &attempts{}
	r := activities.Repair{Repairs: port, OnAttempt: func(a recovery.Attempt) { seen = append(seen, string(a.Rung)+" "+a.Outcome) }}
	began := recovery.Attempt{Rung: recovery.RungReboot, StartedAt: time.Now()}
	ended := began
	ended.EndedAt, ended.Outcome = time.Now(), recovery.OutcomeCured
	for _, a := range []recovery.Attempt{began, ended} {
		before, err := r.RecordAttempt(t.Context(), activities.Fence{}, a)
		require.NoError(t, err)
		require.Equal(t, "boot-1", before)
	}
	port.err = errors.New("no database")
	_, err := r.RecordAttempt(t.Context(), activities.Fence{}, ended)
	require.Error(t, err)
	require.Equal(t, []string{"reboot cured"}, seen)
}
