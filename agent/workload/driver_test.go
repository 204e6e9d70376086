package workload

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// calls reads what a stand-in program was called with.
func calls(t *testing.T, path string) []string {
	t.Helper()
	data, err := os.ReadFile(path + ".calls")
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(t, err)
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

// standIn is a script that notes its calls; body answers them.
func standIn(t *testing.T, body string) string {
	t.Helper()
	return agenttest.Stub(t, `echo "$*" >> "$0.calls"`+"\n"+body)
}

const units = `Id=train.service
Slice=gpuaas-workloads.slice
ActiveState=active
ActiveEnterTimestamp=@1714730400

Id=old.service
Slice=gpuaas-workloads-a.slice
ActiveState=deactivating
ActiveEnterTimestamp=@1714730400

Id=sshd.service
Slice=system.slice
ActiveState=active
ActiveEnterTimestamp=@1714730400

Id=done.service
Slice=gpuaas-workloads.slice
ActiveState=inactive
ActiveEnterTimestamp=

Id=run-1.scope
Slice=gpuaas-workloads.slice
ActiveState=activating
ActiveEnterTimestamp=n/a
`

func TestSystemdDriver(t *testing.T) {
	t.Parallel()
	path := standIn(t, `case "$1" in show) cat <<'END'
`+units+`END
;; esac`)
	d := &systemdDriver{program{path: path}, DefaultSlice}
	list, err := d.List(t.Context())
	require.NoError(t, err)
	since := time.Unix(1714730400, 0).UTC()
	require.Equal(t, []task.Workload{
		{Name: "old.service", Kind: "systemd", Since: since, Stopping: true},
		{Name: "run-1.scope", Kind: "systemd"},
		{Name: "train.service", Kind: "systemd", Since: since},
	}, list)
	require.NoError(t, d.Stop(t.Context(), "train.service"))
	require.NoError(t, d.Kill(t.Context(), "train.service"))
	require.Equal(t, []string{"stop --no-block -- train.service", "kill --signal=SIGKILL -- train.service"}, calls(t, path)[1:])
}

func TestSystemdDriverFails(t *testing.T) {
	t.Parallel()
	d := &systemdDriver{program{path: agenttest.Stub(t, "echo 'System has not been booted with systemd' >&2; exit 1")}, DefaultSlice}
	_, err := d.List(t.Context())
	require.ErrorContains(t, err, "has not been booted")
	require.Error(t, d.Stop(t.Context(), "x"))
}

const dockerAnswers = `case "$1" in
ps) [ -e "$0.gone" ] || echo '{"ID":"aaa","Names":"train","CreatedAt":"2024-05-03 10:00:00 +0000 UTC","State":"running"}' ;;
inspect) echo SIGINT ;;
kill) [ ! -e "$0.broken" ] ;;
esac`

func dockerWith(t *testing.T, path string, s disk.StateDir) *dockerDriver {
	t.Helper()
	made, err := NewDocker(Config{Label: DefaultLabel, State: s, Changed: func() {}, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	d, ok := made.(*dockerDriver)
	require.True(t, ok)
	d.path = path
	return d
}

func TestDockerDriver(t *testing.T) {
	t.Parallel()
	path, s := standIn(t, dockerAnswers), disk.At(t.TempDir())
	d := dockerWith(t, path, s)
	list, err := d.List(t.Context())
	require.NoError(t, err)
	require.Equal(t, []task.Workload{{Name: "train", Kind: "docker", Since: time.Date(2024, 5, 3, 10, 0, 0, 0, time.UTC)}}, list)
	require.Contains(t, calls(t, path)[0], "--filter label="+DefaultLabel)

	require.NoError(t, d.Stop(t.Context(), "train"))
	require.NoError(t, d.Stop(t.Context(), "absent"))
	d = dockerWith(t, path, s) // after a crash
	require.NoError(t, d.Stop(t.Context(), "train"))
	all := strings.Join(calls(t, path), "\n")
	require.Equal(t, 1, strings.Count(all, "kill --signal=SIGINT aaa"), all)
	require.Less(t, strings.Index(all, "update --restart=no aaa"), strings.Index(all, "kill "), "the restart policy goes first")
	list, err = d.List(t.Context())
	require.NoError(t, err)
	require.True(t, list[0].Stopping)
	require.NoError(t, d.Kill(t.Context(), "train"))
	require.Equal(t, "kill aaa", calls(t, path)[len(calls(t, path))-1])

	// A container that is gone is forgotten: after a manual restart it can be stopped.
	require.NoError(t, os.WriteFile(path+".gone", nil, 0o600))
	list, err = d.List(t.Context())
	require.NoError(t, err)
	require.Empty(t, list)
	require.NoError(t, os.Remove(path+".gone"))
	list, err = dockerWith(t, path, s).List(t.Context())
	require.NoError(t, err)
	require.False(t, list[0].Stopping)
}

// TestDockerStatusWritesNothing: the status command lists from a second process and
// must not change the marks of the agent that runs.
func TestDockerStatusWritesNothing(t *testing.T) {
	t.Parallel()
	path, s := standIn(t, dockerAnswers), disk.At(t.TempDir())
	require.NoError(t, dockerWith(t, path, s).Stop(t.Context(), "train"))
	marks, err := os.ReadFile(s.File("docker-stops.json"))
	require.NoError(t, err)

	require.NoError(t, os.WriteFile(path+".gone", nil, 0o600))
	made, err := NewDocker(Config{Label: DefaultLabel, State: s, ReadOnly: true, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	d, ok := made.(*dockerDriver)
	require.True(t, ok)
	d.path = path
	list, err := d.List(t.Context())
	require.NoError(t, err)
	require.Empty(t, list)
	after, err := os.ReadFile(s.File("docker-stops.json"))
	require.NoError(t, err)
	require.Equal(t, string(marks), string(after))
}

// TestDockerListKeepsNewMarks: a list whose docker ps began before a stop does not drop
// the stop's mark, or the container would receive a second signal.
func TestDockerListKeepsNewMarks(t *testing.T) {
	t.Parallel()
	path := standIn(t, `if [ "$1" = ps ] && [ -e "$0.hold" ]; then rm "$0.hold"; read -r end < "$0.fifo"; exit 0; fi
`+dockerAnswers)
	require.NoError(t, syscall.Mkfifo(path+".fifo", 0o600))
	require.NoError(t, os.WriteFile(path+".hold", nil, 0o600))
	d := dockerWith(t, path, disk.At(t.TempDir()))
	listed := make(chan error, 1)
	go func() {
		_, err := d.List(t.Context())
		listed <- err
	}()
	held, err := os.OpenFile(path+".fifo", os.O_WRONLY, 0) // opens once docker ps reads it
	require.NoError(t, err)
	require.NoError(t, d.Stop(t.Context(), "train"))
	require.NoError(t, held.Close())
	require.NoError(t, <-listed)
	require.NoError(t, d.Stop(t.Context(), "train"))
	all := strings.Join(calls(t, path), "\n")
	require.Equal(t, 1, strings.Count(all, "kill --signal=SIGINT aaa"), all)
}

func TestDockerDriverFails(t *testing.T) {
	t.Parallel()
	d := dockerWith(t, agenttest.Stub(t, "echo 'Cannot connect to the Docker daemon' >&2; exit 1"), disk.At(t.TempDir()))
	_, err := d.List(t.Context())
	require.ErrorContains(t, err, "Cannot connect")
	d = dockerWith(t, agenttest.Stub(t, "echo nonsense"), disk.At(t.TempDir()))
	_, err = d.List(t.Context())
	require.ErrorContains(t, err, "unexpected")
}

func TestWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		changes, n := 0, 0
		answers := [][]task.Workload{nil, nil, {{Name: "a"}}, {{Name: "a"}}, nil, {{Name: "a", Stopping: true}}}
		p := program{changed: func() { changes++ }, log: slog.New(slog.DiscardHandler)}
		p.watch(ctx, func(context.Context) ([]task.Workload, error) {
			n++
			if n == len(answers) {
				cancel()
			}
			if n == 5 {
				return nil, errors.New("busy")
			}
			return answers[n-1], nil
		})
		require.Equal(t, 1, changes, "an error is no change")
		require.Equal(t, len(answers), n)
	})
}
