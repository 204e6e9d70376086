package health_test

import (
	"encoding/json"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
)

// storeIn returns a store with the node n in a phase that it entered at the start.
func storeIn(t *testing.T, p health.Phase) health.StateStore {
	t.Helper()
	s := health.NewMemoryStore()
	steps := []func() (health.State, error){}
	unhealthy := func() (health.State, error) { return s.Unhealthy("n", start()) }
	reboot := func() (health.State, error) { return s.StartReboot("n", start(), health.StandardRebootWait) }
	drain := func() (health.State, error) { return s.StartDrain("n", start(), 30*time.Minute) }
	replace := func() (health.State, error) { return s.StartReplace("n", start()) }
	switch p {
	case health.PhaseHealthy:
		steps = append(steps, func() (health.State, error) { return s.Healthy("n", start()) })
	case health.PhaseUnhealthy:
		steps = append(steps, unhealthy)
	case health.PhaseWaitingReboot:
		steps = append(steps, unhealthy, reboot)
	case health.PhaseDrain:
		steps = append(steps, unhealthy, drain)
	case health.PhaseReplace:
		steps = append(steps, unhealthy, drain, replace)
	}
	for _, step := range steps {
		_, err := step()
		require.NoError(t, err)
	}
	require.Equal(t, p, s.State("n").Phase())
	return s
}

// restart returns a store that was restored from the stored JSON of another one.
func restart(t *testing.T, s health.StateStore) health.StateStore {
	t.Helper()
	text, err := json.Marshal(s.Snapshot())
	require.NoError(t, err)
	var states []health.State
	require.NoError(t, json.Unmarshal(text, &states))
	next := health.NewMemoryStore()
	require.NoError(t, next.Restore(states))
	require.Equal(t, s.Snapshot(), next.Snapshot())
	return next
}

// TestTransitions is the whole table of transitions: every method in every phase, before and after the
// time of the phase has passed, and over a restart.
func TestTransitions(t *testing.T) {
	t.Parallel()
	const no = health.Phase(-1)
	methods := map[string]func(health.StateStore, time.Time) (health.State, error){
		"Healthy":   func(s health.StateStore, now time.Time) (health.State, error) { return s.Healthy("n", now) },
		"Unhealthy": func(s health.StateStore, now time.Time) (health.State, error) { return s.Unhealthy("n", now) },
		"StartReboot": func(s health.StateStore, now time.Time) (health.State, error) {
			return s.StartReboot("n", now, 40*time.Minute)
		},
		"RefuseReboot": func(s health.StateStore, now time.Time) (health.State, error) { return s.RefuseReboot("n", now) },
		"StartDrain": func(s health.StateStore, now time.Time) (health.State, error) {
			return s.StartDrain("n", now, time.Hour)
		},
		"StartReplace": func(s health.StateStore, now time.Time) (health.State, error) { return s.StartReplace("n", now) },
	}
	table := map[string][]health.Phase{ // by the phase before: Unknown, Healthy, Unhealthy, WaitingReboot, Drain, Replace
		"Healthy":              {health.PhaseHealthy, health.PhaseHealthy, health.PhaseHealthy, health.PhaseHealthy, health.PhaseHealthy, health.PhaseHealthy},
		"Unhealthy":            {health.PhaseUnhealthy, health.PhaseUnhealthy, health.PhaseUnhealthy, health.PhaseWaitingReboot, health.PhaseDrain, health.PhaseReplace},
		"StartReboot":          {no, no, health.PhaseWaitingReboot, no, no, no},
		"StartReboot expired":  {no, no, health.PhaseWaitingReboot, health.PhaseWaitingReboot, no, no},
		"RefuseReboot":         {no, no, no, health.PhaseUnhealthy, no, no},
		"StartDrain":           {no, no, health.PhaseDrain, no, health.PhaseDrain, no},
		"StartDrain expired":   {no, no, health.PhaseDrain, health.PhaseDrain, health.PhaseDrain, no},
		"StartReplace":         {no, no, no, no, health.PhaseReplace, health.PhaseReplace},
		"StartReplace expired": {no, no, no, no, health.PhaseReplace, health.PhaseReplace},
	}
	for name, wants := range table {
		method, now := name, at(5*time.Minute)
		if m, ok := cutSuffix(name); ok {
			method, now = m, at(time.Hour)
		}
		for i, before := range health.Phases() {
			for _, over := range []bool{false, true} {
				s := storeIn(t, before)
				if over {
					s = restart(t, s)
				}
				old := s.State("n")
				got, err := methods[method](s, now)
				if wants[i] == no {
					require.ErrorIs(t, err, &schema.Error{Kind: schema.KindInvalidRequest, Reason: health.ReasonPhase}, "%s in %s", name, before)
					require.Equal(t, old, s.State("n"), "%s in %s changed the state", name, before)
					continue
				}
				require.NoError(t, err, "%s in %s", name, before)
				require.Equal(t, wants[i], got.Phase(), "%s in %s", name, before)
				require.Equal(t, got, s.State("n"))
			}
		}
	}
}

func cutSuffix(name string) (string, bool) {
	const suffix = " expired"
	if len(name) > len(suffix) && name[len(name)-len(suffix):] == suffix {
		return name[:len(name)-len(suffix)], true
	}
	return name, false
}

func TestStateOfRebootAndRecovery(t *testing.T) {
	t.Parallel()
	s := health.NewMemoryStore()
	_, err := s.Unhealthy("gpu-17", at(0))
	require.NoError(t, err)
	st, err := s.Unhealthy("gpu-17", at(3*time.Minute))
	require.NoError(t, err)
	require.Equal(t, at(0), st.UnhealthySince(), "a second report does not restart the time")
	st, err = s.StartReboot("gpu-17", at(10*time.Minute), health.RebootWait(true))
	require.NoError(t, err)
	require.Equal(t, at(50*time.Minute), st.Deadline())
	require.Equal(t, at(10*time.Minute), st.RebootedAt())
	require.Equal(t, 1, st.Reboots())
	require.False(t, st.Expired(at(49*time.Minute)))
	require.True(t, st.Expired(at(50*time.Minute)))

	s = restart(t, s)
	_, err = s.StartReboot("gpu-17", at(20*time.Minute), health.RebootWait(true))
	require.Error(t, err, "a restart must not lead to a second reboot")
	st, err = s.StartReboot("gpu-17", at(51*time.Minute), health.RebootWait(true))
	require.NoError(t, err)
	require.Equal(t, 2, st.Reboots())
	require.Equal(t, at(0), st.UnhealthySince())

	st, err = s.Healthy("gpu-17", at(60*time.Minute))
	require.NoError(t, err)
	require.Equal(t, 2, st.Reboots())
	st, err = s.Healthy("gpu-17", at(92*time.Minute))
	require.NoError(t, err)
	require.Zero(t, st.Reboots())
	require.Zero(t, st.UnhealthySince())
	require.Zero(t, st.Deadline())
	require.Equal(t, "gpu-17", st.Node())
	st, err = s.Healthy("gpu-17", at(95*time.Minute))
	require.NoError(t, err)
	require.Equal(t, at(60*time.Minute), st.Since())
}

// A node may look healthy for a moment before it restarts. Then it is down: that must not lead to a
// second reboot.
func TestHealthyBeforeTheRestartKeepsTheReboot(t *testing.T) {
	t.Parallel()
	s := storeIn(t, health.PhaseWaitingReboot)
	_, err := s.Healthy("n", at(10*time.Second))
	require.NoError(t, err)
	s = restart(t, s)
	st, err := s.Unhealthy("n", at(20*time.Second))
	require.NoError(t, err)
	require.Equal(t, 1, st.Reboots())
	require.False(t, st.CanRepair(at(9*time.Minute)))
	_, err = s.StartReboot("n", at(9*time.Minute), time.Hour)
	require.Error(t, err)
	_, err = s.StartDrain("n", at(9*time.Minute), time.Hour)
	require.Error(t, err)
	require.True(t, st.CanRepair(start().Add(health.StandardRebootWait)))
	st, err = s.StartReboot("n", at(10*time.Minute), time.Hour)
	require.NoError(t, err)
	require.Equal(t, 2, st.Reboots(), "the ladder continues")
}

// A node that is healthy after the time of its reboot starts again without a history.
func TestHealthyAfterTheRebootForgetsIt(t *testing.T) {
	t.Parallel()
	s := storeIn(t, health.PhaseWaitingReboot)
	for _, when := range []time.Duration{5 * time.Minute, 11 * time.Minute} {
		_, err := s.Healthy("n", at(when))
		require.NoError(t, err)
	}
	st := s.State("n")
	require.Zero(t, st.Reboots())
	require.Zero(t, st.RebootedAt())
	require.Equal(t, at(5*time.Minute), st.Since())
}

func TestRefusedRebootDoesNotCount(t *testing.T) {
	t.Parallel()
	s := storeIn(t, health.PhaseWaitingReboot)
	st, err := s.RefuseReboot("n", at(time.Minute))
	require.NoError(t, err)
	require.Equal(t, health.PhaseUnhealthy, st.Phase())
	require.Zero(t, st.Reboots())
	require.Equal(t, at(time.Minute), st.RefusedAt())
	require.Equal(t, start(), st.UnhealthySince())
	st, err = s.StartReboot("n", at(2*time.Minute), time.Minute)
	require.NoError(t, err)
	require.Equal(t, 1, st.Reboots())
}

func TestRebootWait(t *testing.T) {
	t.Parallel()
	require.Equal(t, 10*time.Minute, health.RebootWait(false))
	require.Equal(t, 40*time.Minute, health.RebootWait(true))
}

// One node's state and errors never affect another node.
func TestStoreIsolatesNodes(t *testing.T) {
	t.Parallel()
	s := storeIn(t, health.PhaseWaitingReboot)
	_, err := s.StartReplace("n", start())
	require.Error(t, err)
	_, err = s.Unhealthy("m", start())
	require.NoError(t, err)
	st, err := s.StartReboot("m", at(time.Second), time.Hour)
	require.NoError(t, err)
	require.Equal(t, at(time.Second+time.Hour), st.Deadline())
	require.Equal(t, start().Add(health.StandardRebootWait), s.State("n").Deadline())
	_, err = s.Healthy(" ", start())
	require.Error(t, err)
	require.Len(t, s.Snapshot(), 2)
}

func TestForgetDropsTheState(t *testing.T) {
	t.Parallel()
	s := storeIn(t, health.PhaseDrain)
	s.Forget("n")
	s.Forget("other")
	require.Empty(t, s.Snapshot())
	require.Equal(t, health.PhaseUnknown, s.State("n").Phase())
	require.Equal(t, "n", s.State("n").Node())
}

func TestRestoreRejectsBadStates(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`[{"node":"a","phase":"Healthy"},{"node":"a","phase":"Healthy"}]`, `[{"phase":"Healthy"}]`} {
		s := storeIn(t, health.PhaseHealthy)
		var states []health.State
		require.NoError(t, json.Unmarshal([]byte(text), &states))
		require.ErrorIs(t, s.Restore(states), &schema.Error{Kind: schema.KindInvalidRequest}, text)
		require.Len(t, s.Snapshot(), 1, "a rejected snapshot changes nothing")
	}
	var st health.State
	require.Error(t, json.Unmarshal([]byte(`{"node":"a","phase":"Broken"}`), &st))
}

// TestRebootsAreApart checks random sequences of transitions and restarts: no reboot begins within the
// time of the one before, unless that one was refused, and a rejected transition changes nothing.
func TestRebootsAreApart(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 2))
		s, now := health.NewMemoryStore(), start()
		var until time.Time
		for range 200 {
			now = now.Add(time.Duration(r.IntN(180)) * time.Second)
			before := s.State("n")
			var err error
			switch r.IntN(8) {
			case 0, 1:
				_, err = s.Healthy("n", now)
			case 2, 3:
				_, err = s.Unhealthy("n", now)
			case 4, 5:
				if _, err = s.StartReboot("n", now, health.StandardRebootWait); err == nil {
					require.False(t, now.Before(until), "seed %d: a reboot at %s within the time of another one", seed, now)
					until = now.Add(health.StandardRebootWait)
				}
			case 6:
				if _, err = s.RefuseReboot("n", now); err == nil {
					until = time.Time{}
				}
			case 7:
				s = restart(t, s)
			}
			if err != nil {
				require.Equal(t, before, s.State("n"))
			}
			require.GreaterOrEqual(t, s.State("n").Reboots(), 0)
		}
	}
}
