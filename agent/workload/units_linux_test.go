package workload

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestUnits: the states of installed units, and requests for units that are no workloads.
func TestUnits(t *testing.T) {
	t.Parallel()
	f := newFakeSystemd(t,
		&fakeUnit{name: "nvidia-fabricmanager.service", state: "failed", file: "enabled", restarts: 3},
		&fakeUnit{name: "nvidia-persistenced.service", state: "active", file: "static"},
		&fakeUnit{name: "other.service", state: "active"},
		&fakeUnit{name: "reboot.target", state: "inactive"},
	)
	u := Units{f.bus()}
	list, err := u.States(t.Context(), "nvidia-fabricmanager.service", "nvidia-persistenced.service", "absent.service")
	require.NoError(t, err)
	require.Equal(t, []UnitState{
		{Name: "nvidia-fabricmanager.service", Failed: true, Enabled: true, Restarts: 3},
		{Name: "nvidia-persistenced.service", Active: true},
	}, list)

	require.NoError(t, u.Stop(t.Context(), "nvidia-persistenced.service"))
	active, err := u.Active(t.Context(), "nvidia-persistenced.service")
	require.NoError(t, err)
	require.False(t, active)
	require.NoError(t, u.Start(t.Context(), "nvidia-persistenced.service"))
	require.NoError(t, u.Reboot(t.Context()))
	require.Equal(t, []string{
		"stop replace nvidia-persistenced.service", "start replace nvidia-persistenced.service", "start replace-irreversibly reboot.target",
	}, f.seen())

	f.set(func() { f.fails = true })
	_, err = u.States(t.Context(), "other.service")
	require.ErrorContains(t, err, "cannot list the units of systemd")
	require.ErrorContains(t, u.Reboot(t.Context()), "cannot start reboot.target")
}
