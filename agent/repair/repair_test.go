package repair

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/command"
	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/execution"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

const (
	firstUUID  = "GPU-11111111-2222-3333-4444-555555555555"
	secondUUID = "GPU-66666666-7777-8888-9999-000000000000"
)

// taskOf is a task whose server always confirms it.
func taskOf(t *testing.T, params any) execution.Task {
	t.Helper()
	raw, err := json.Marshal(params)
	require.NoError(t, err)
	return execution.Task{Payload: task.Payload{TaskID: "t-1", Params: raw}, Dir: t.TempDir(), Note: func(string) {},
		Confirm: func(context.Context, time.Duration) error { return nil }}
}

// units are the services of a machine.
type units struct {
	active []string
	calls  []string
	fails  string // a call that fails
	then   func() // is called after each call
}

func (u *units) Active(_ context.Context, name string) (bool, error) {
	return slices.Contains(u.active, name), nil
}

func (u *units) Stop(_ context.Context, name string) error {
	return u.do("stop "+name, func() { u.active = slices.DeleteFunc(u.active, func(a string) bool { return a == name }) })
}

func (u *units) Start(_ context.Context, name string) error {
	return u.do("start "+name, func() { u.active = append(u.active, name) })
}

func (u *units) do(call string, do func()) error {
	u.calls = append(u.calls, call)
	if call == u.fails {
		return errors.New("the job of systemd ended as failed")
	}
	do()
	if u.then != nil {
		u.then()
	}
	return nil
}

// machine is a machine with two GPUs. Its nvidia-smi notes the commands that change something.
type machine struct {
	t     *testing.T
	dir   string
	units *units
	reset Reset
	done  []string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, dir: t.TempDir(), units: &units{active: []string{"nvidia-persistenced.service", "nvidia-dcgm.service", "sshd.service"}}}
	m.reset = Reset{
		SMI: agenttest.Stub(t, `cd `+m.dir+`
case "$1" in
--query-gpu=uuid,persistence_mode) echo "`+firstUUID+`, Enabled
`+secondUUID+`, Disabled" ;;
--query-compute-apps=*) cat apps 2>/dev/null ;;
*) echo "$*" >> calls; if [ -e "fail$1" ]; then cat "fail$1"; rm -f "fail$1"; exit 3; fi ;;
esac
exit 0`),
		Units: m.units, State: disk.At(t.TempDir()), Done: func(uuids []string) { m.done = uuids }, Pause: time.Nanosecond,
	}
	return m
}

// file writes a file that the stub reads.
func (m *machine) file(name, text string) {
	m.t.Helper()
	require.NoError(m.t, os.WriteFile(filepath.Join(m.dir, name), []byte(text), 0o600))
}

// calls are the commands of nvidia-smi that changed something.
func (m *machine) calls() []string {
	text, _ := os.ReadFile(filepath.Join(m.dir, "calls")) // absent without calls
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

func (m *machine) run(p task.ResetParams) (task.ResetResult, error) {
	m.t.Helper()
	out, err := m.reset.Run(m.t.Context(), taskOf(m.t, p))
	if err != nil {
		return task.ResetResult{}, err
	}
	r, ok := out.(task.ResetResult)
	require.True(m.t, ok)
	return r, nil
}

// restored requires that every client of the GPUs runs again.
func (m *machine) restored() {
	m.t.Helper()
	require.ElementsMatch(m.t, []string{"nvidia-persistenced.service", "nvidia-dcgm.service", "sshd.service"}, m.units.active)
	was, err := m.reset.record()
	require.NoError(m.t, err)
	require.Empty(m.t, was)
}

func TestReset(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	r, err := m.run(task.ResetParams{})
	require.NoError(t, err)
	require.Equal(t, []string{firstUUID, secondUUID}, r.Reset)
	require.Equal(t, r.Reset, m.done)
	require.Equal(t, []string{"-pm 0 -i " + firstUUID, "--gpu-reset", "-pm 1 -i " + firstUUID}, m.calls())
	require.Equal(t, []string{"stop nvidia-dcgm.service", "stop nvidia-persistenced.service", "start nvidia-persistenced.service", "start nvidia-dcgm.service"}, m.units.calls)
	m.restored()
}

func TestResetOfOneGPU(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.file("apps", firstUUID+", 4711, python3\n") // on the other GPU
	r, err := m.run(task.ResetParams{GPUs: []string{secondUUID}})
	require.NoError(t, err)
	require.Equal(t, []string{secondUUID}, r.Reset)
	require.Equal(t, []string{"--gpu-reset -i " + secondUUID}, m.calls())
	m.restored()

	_, err = m.run(task.ResetParams{GPUs: []string{"GPU-aaaa"}})
	require.ErrorContains(t, err, "no_such_gpu: ")
}

// TestResetOfGPUInUse: nothing changes, and the failure names the processes.
func TestResetOfGPUInUse(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	apps := ""
	for i := range 10 {
		apps += fmt.Sprintf("%s, %d, train \x1b[2J--lr=0.1\n", secondUUID, 4711+i)
	}
	m.file("apps", apps)
	_, err := m.run(task.ResetParams{})
	require.ErrorContains(t, err, "gpu_in_use: pid 4711 train ?[2J--lr=0.1 on "+secondUUID)
	require.ErrorContains(t, err, "and 2 more")
	require.Equal(t, schema.KindTaskFailed, schema.KindOf(err))
	require.Equal(t, []string{""}, m.calls())
	require.Empty(t, m.units.calls)
}

// TestUnconfirmedReset: without the server's confirmation, nothing is stopped and no GPU is reset.
func TestUnconfirmedReset(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	one := taskOf(t, task.ResetParams{})
	one.Confirm = func(context.Context, time.Duration) error { return errors.New("canceled") }
	_, err := m.reset.Run(t.Context(), one)
	require.ErrorContains(t, err, "canceled")
	require.Equal(t, []string{""}, m.calls())
	require.Empty(t, m.units.calls)
}

// TestResetOfGPUThatIsTaken: a process that opens a GPU while its services stop keeps it from the reset.
func TestResetOfGPUThatIsTaken(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.units.then = func() { m.file("apps", secondUUID+", 4711, train") }
	_, err := m.run(task.ResetParams{})
	require.Equal(t, ReasonInUse, schema.AsError(err).Reason)
	require.NotContains(t, m.calls(), "--gpu-reset")
	require.Empty(t, m.done)
	m.restored()
}

// TestFailedReset: whatever fails, the services run again.
func TestFailedReset(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(m *machine)
		want    string
	}{
		"reset":     {func(m *machine) { m.file("fail--gpu-reset", "Unable to reset this GPU\n") }, "Unable to reset this GPU"},
		"mode":      {func(m *machine) { m.file("fail-pm", "Insufficient Permissions\n") }, "Insufficient Permissions"},
		"a service": {func(m *machine) { m.units.fails = "stop nvidia-persistenced.service" }, "the job of systemd ended as failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			c.prepare(m)
			_, err := m.run(task.ResetParams{})
			require.ErrorContains(t, err, "reset_failed: ")
			require.ErrorContains(t, err, c.want)
			require.Empty(t, m.done)
			if name == "a service" { // it was never stopped
				require.NotContains(t, m.calls(), "--gpu-reset")
				m.units.active = append(m.units.active[:0], "nvidia-persistenced.service", "nvidia-dcgm.service", "sshd.service")
			}
			m.restored()
		})
	}
}

// TestResetRetries: a query of monitoring has the GPU open for a moment.
func TestResetRetries(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.file("fail--gpu-reset", "GPU 00000000:3B:00.0 is currently in use by another client\n")
	_, err := m.run(task.ResetParams{})
	require.NoError(t, err)
	require.Len(t, slices.DeleteFunc(m.calls(), func(c string) bool { return c != "--gpu-reset" }), 2)
	m.restored()
}

// TestCanceledReset: the services run again although the context of the task ended.
func TestCanceledReset(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	one := taskOf(t, task.ResetParams{})
	one.Note = func(note string) {
		if note == "resetting the GPUs" {
			cancel(execution.ErrCanceled)
		}
	}
	_, err := m.reset.Run(ctx, one)
	require.Error(t, err)
	require.NotContains(t, m.calls(), "--gpu-reset")
	m.restored()
}

// TestRecoverReset: an agent that was killed during a reset starts the services at its next start,
// also if the task is gone, and once.
func TestRecoverReset(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	require.NoError(t, m.reset.open(t.Context(), taskRunner(), m.reset.SMI, []gpu{{uuid: firstUUID, persistent: true}}, new(opened)))
	require.NotContains(t, m.units.active, "nvidia-dcgm.service")
	require.NoError(t, m.reset.Recover(t.Context()))
	m.restored()
	n := len(m.units.calls)
	require.NoError(t, m.reset.Recover(t.Context()))
	require.Len(t, m.units.calls, n)
}

func TestResetParams(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"", "null", "{}", `{"gpus":["` + firstUUID + `"]}`} {
		require.NoError(t, Reset{}.Check([]byte(good)), good)
	}
	for _, bad := range []string{"[]", `{"gpu":[]}`, `{"gpus":["0"]}`, `{"gpus":["GPU-1;reboot"]}`, `{"gpus":["GPU-1","GPU-1"]}`} {
		require.Error(t, Reset{}.Check([]byte(bad)), bad)
	}
}

// TestReboot: the machine restarts only in the boot of the task and before the task expires.
func TestReboot(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	starts := 0
	r := Reboot{BootID: "a", Now: func() time.Time { return now }, Log: slog.New(slog.DiscardHandler), Start: func(context.Context) error {
		if starts++; starts == 1 {
			return errors.New("systemd does not answer")
		}
		return nil
	}}
	payload := task.Payload{ExpiresAt: now.Add(time.Minute), Params: task.RebootParams{BootID: "a"}.Encode()}
	require.False(t, r.Reported(payload))
	require.Equal(t, 2, starts, "it tries again")
	other := payload
	other.Params = task.RebootParams{BootID: "b"}.Encode()
	require.False(t, r.Reported(other))
	now = now.Add(2 * time.Minute)
	require.False(t, r.Reported(payload))
	require.Equal(t, 2, starts)
	for _, bad := range []string{"", "{}", `{"boot_id":""}`, `{"boot_id":"a","force":true}`} {
		require.Error(t, r.Check([]byte(bad)), bad)
	}
}

// verification is a node that passes every test.
func verification(t *testing.T) Verify {
	t.Helper()
	return Verify{
		BootID: "a", DCGM: agenttest.Stub(t, `echo '{"DCGM Diagnostic":{"test_categories":[{"category":"Deployment","tests":[{"name":"software","results":[{"status":"Pass"},{"status":"Skip"}]}]}]}}'`),
		BurnIn:    []string{agenttest.Stub(t, `echo "$*"; echo "# Avg bus bandwidth    : 371.2"; echo "#"`), "-b", "8 G"},
		WriteDisk: func(ctx context.Context) (string, error) { return WriteDisk(ctx, t.TempDir()) },
		Health: func(context.Context, int) ([]health.Finding, int, error) {
			return []health.Finding{
				{Checker: "gpu_nvlink", Results: []health.Result{{Status: health.Healthy, Reason: "LinksUp"}}},
				{Checker: "gpu_xid", Results: []health.Result{{Status: health.Unhealthy, Reason: "ApplicationFault", Repair: health.RepairNone}}},
				{Checker: "host_clock", Results: []health.Result{{Status: health.Unknown, Reason: "NotRead"}}},
			}, 8, nil
		},
	}
}

func verify(t *testing.T, v Verify, p task.VerifyParams) (task.VerifyResult, map[string]recovery.Test) {
	t.Helper()
	out, err := v.Run(t.Context(), taskOf(t, p))
	require.NoError(t, err)
	r, ok := out.(task.VerifyResult)
	require.True(t, ok)
	tests := map[string]recovery.Test{}
	for _, one := range r.Tests {
		tests[one.Name] = one
	}
	require.Equal(t, "a", r.BootID)
	return r, tests
}

// TestVerify: the rung selects the tests, and each has its figures.
func TestVerify(t *testing.T) {
	t.Parallel()
	for rung, level := range map[recovery.Rung]string{recovery.RungResetGPU: "1", recovery.RungReboot: "2", recovery.RungReplace: "3"} {
		r, tests := verify(t, verification(t), task.VerifyParams{Rung: rung, GPUs: 8})
		require.True(t, r.OK, "%+v", r.Tests)
		require.Equal(t, recovery.Test{Name: "gpu_list", OK: true, Detail: "8 of 8 GPUs"}, tests["gpu_list"])
		require.True(t, tests["gpu_xid"].OK, "a fault of the workload")
		require.Contains(t, tests["disk_write"].Detail, "64 MiB")
		require.Contains(t, tests["dcgm_diag_"+level].Detail, "1 results passed")
		require.Equal(t, recovery.Test{Name: "host_clock", Detail: "skipped: NotRead"}, tests["host_clock"])
		if rung == recovery.RungResetGPU {
			require.NotContains(t, tests, "burn_in")
		} else {
			require.Equal(t, recovery.Test{Name: "burn_in", OK: true, Detail: "# Avg bus bandwidth    : 371.2"}, tests["burn_in"])
		}
	}
}

// TestVerifyWithoutTools: what is not installed is skipped, not passed. A node without GPUs needs none.
func TestVerifyWithoutTools(t *testing.T) {
	t.Parallel()
	v := verification(t)
	v.DCGM, v.BurnIn = "/no/such/dcgmi", nil
	r, tests := verify(t, v, task.VerifyParams{Rung: recovery.RungReplace, GPUs: 8})
	require.True(t, r.OK)
	require.Equal(t, recovery.Test{Name: "dcgm_diag_3", Detail: "skipped: dcgmi is not installed"}, tests["dcgm_diag_3"])
	require.Equal(t, recovery.Test{Name: "burn_in", Detail: "skipped: GPUAAS_BURN_IN is not set"}, tests["burn_in"])

	v.Health = func(context.Context, int) ([]health.Finding, int, error) {
		return []health.Finding{{Checker: "gpu_xid", Results: []health.Result{{Status: health.Unknown, Reason: "NotRead"}}}}, 0, nil
	}
	r, tests = verify(t, v, task.VerifyParams{Rung: recovery.RungReboot})
	require.True(t, r.OK)
	require.Len(t, tests, 2, "%+v", tests)
	require.Equal(t, "skipped: NotRead", tests["gpu_xid"].Detail)
}

// TestFailedVerification: each failed test fails the verification, and names the cause.
func TestFailedVerification(t *testing.T) {
	t.Parallel()
	found := func(results ...health.Result) func(context.Context, int) ([]health.Finding, int, error) {
		return func(context.Context, int) ([]health.Finding, int, error) {
			return []health.Finding{{Checker: "gpu_xid", Results: results}}, 8, nil
		}
	}
	for name, c := range map[string]struct {
		change func(v *Verify)
		test   string
		want   string
	}{
		"a GPU is missing": {func(v *Verify) {
			v.Health = func(context.Context, int) ([]health.Finding, int, error) { return nil, 7, nil }
		}, "gpu_list", "7 of 8 GPUs"},
		"a GPU too many": {func(v *Verify) {
			v.Health = func(context.Context, int) ([]health.Finding, int, error) { return nil, 9, nil }
		}, "gpu_list", "9 of 8 GPUs"},
		"an XID": {func(v *Verify) {
			v.Health = found(health.Result{Component: "GPU-1", Status: health.Unhealthy, Reason: "BusFault", Repair: health.RepairReboot, Detail: "XID 79"})
		}, "gpu_xid", "GPU-1 BusFault XID 79"},
		"a GPU that does not answer": {func(v *Verify) { v.Health = found(health.Result{Status: health.Unknown, Reason: "NotRead"}) }, "gpu_xid", "unknown: NotRead"},
		"the diagnosis": {func(v *Verify) {
			v.DCGM = agenttest.Stub(t, `echo 'warning'; echo '{"DCGM GPU Diagnostic":{"test_categories":[{"tests":[{"name":"PCIe","results":[{"status":"Fail"},{"status":"Fail"}]},{"name":"Memory","results":[{"status":"FAIL"}]}]}]}}'; exit 226`)
		}, "dcgm_diag_2", "failed: PCIe, Memory"},
		"no host engine": {func(v *Verify) {
			v.DCGM = agenttest.Stub(t, `echo "Error: unable to establish a connection to the specified host: localhost" >&2; exit 1`)
		}, "dcgm_diag_2", "unable to establish a connection"},
		"an unknown answer": {func(v *Verify) { v.DCGM = agenttest.Stub(t, `echo done`) }, "dcgm_diag_2", "unexpected output"},
		"endless output":    {func(v *Verify) { v.DCGM = agenttest.Stub(t, `head -c 50000000 /dev/zero`) }, "dcgm_diag_2", "unexpected output"},
		"the burn-in":       {func(v *Verify) { v.BurnIn = []string{agenttest.Stub(t, `echo "out of memory"; exit 1`)} }, "burn_in", "out of memory"},
		"the disk": {func(v *Verify) {
			v.WriteDisk = func(ctx context.Context) (string, error) { return WriteDisk(ctx, "/no/such/folder") }
		}, "disk_write", "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := verification(t)
			c.change(&v)
			r, tests := verify(t, v, task.VerifyParams{Rung: recovery.RungReboot, GPUs: 8})
			require.False(t, r.OK)
			require.False(t, tests[c.test].OK)
			require.Contains(t, tests[c.test].Detail, c.want)
			require.LessOrEqual(t, len(tests[c.test].Detail), maxDetail)
		})
	}
}

// TestCanceledVerification: a test that the cancellation ends did not fail.
func TestCanceledVerification(t *testing.T) {
	t.Parallel()
	v := verification(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	v.DCGM = agenttest.Stub(t, `exec sleep 1000`)
	one := taskOf(t, task.VerifyParams{GPUs: 8})
	one.Note = func(note string) {
		if note == "running dcgmi diag" {
			time.AfterFunc(10*time.Millisecond, func() { cancel(execution.ErrCanceled) })
		}
	}
	_, err := v.Run(ctx, one)
	require.ErrorIs(t, err, execution.ErrCanceled)
}

func TestVerifyParams(t *testing.T) {
	t.Parallel()
	require.NoError(t, Verify{}.Check(task.VerifyParams{Rung: recovery.RungReboot, GPUs: 8}.Encode()))
	for _, bad := range []string{"", `{"rung":"format"}`, `{"gpus":-1}`, `{"gpus":1000}`, `{"rung":"reboot","level":4}`} {
		require.Error(t, Verify{}.Check([]byte(bad)), bad)
	}
}

// TestOutside: with systemd, a program is a unit of its own, whose time is limited.
func TestOutside(t *testing.T) {
	t.Parallel()
	o := Outside{SystemdRun: agenttest.Stub(t, `for a in "$@"; do echo "[$a]"; done`)}
	out, _, err := o.run(t.Context(), taskRunner(), time.Minute, "/usr/bin/nvidia-smi", "-pm", "0 1")
	require.NoError(t, err)
	require.Contains(t, out, "[--property=RuntimeMaxSec=60]\n[--]\n[/usr/bin/nvidia-smi]\n[-pm]\n[0 1]\n")
	o.SystemdRun = agenttest.Stub(t, `exec sleep 1000`)
	_, _, err = o.run(t.Context(), taskRunner(), 50*time.Millisecond, "/usr/bin/nvidia-smi")
	require.ErrorContains(t, err, "did not end within 50ms")
}

func taskRunner() command.Runner { return command.Runner{} }
