package agent

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/host"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/test/agenttest"
	"github.com/gpuaas/gpuaas/test/testkit/need"
)

// xidJournal is a real journal with the line of an XID, behind a journalctl that kills the agent that
// called it while the file kill exists, after it has printed the lines.
func xidJournal(t *testing.T) (path string) {
	t.Helper()
	const remote = "/lib/systemd/systemd-journal-remote"
	journalctl := need.Program(t, "journalctl", "run: sh tools/need.sh host")
	need.Program(t, remote, "run: sh tools/need.sh host")
	dir := t.TempDir()
	at := time.Now().Add(-time.Minute).UnixMicro()
	line := fmt.Sprintf("__REALTIME_TIMESTAMP=%d\n__MONOTONIC_TIMESTAMP=1\n_BOOT_ID=%s\n_TRANSPORT=kernel\nMESSAGE=%s\n\n", at,
		bootWithoutDashes(), "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "export"), []byte(line), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "journal"), 0o700))
	out, err := exec.CommandContext(t.Context(), remote, "-o", filepath.Join(dir, "journal", "a.journal"), filepath.Join(dir, "export")).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, os.Rename(agenttest.Stub(t, journalctl+` -D `+dir+`/journal "$@"
echo called >> `+dir+`/calls
if [ -e `+dir+`/kill ]; then rm `+dir+`/kill; kill -9 $PPID; fi`), filepath.Join(dir, "journalctl")))
	return dir
}

func bootWithoutDashes() string {
	out := []byte{}
	for _, c := range []byte(host.BootID("/")) {
		if c != '-' {
			out = append(out, c)
		}
	}
	return string(out)
}

// xidReported reports whether a heartbeat had the XID. The caller holds the lock of f.
func xidReported(f *agenttest.API) bool {
	for _, h := range f.Heartbeats {
		if h.Health == nil {
			continue
		}
		for _, c := range h.Health.Conditions {
			if c.Checker == "gpu_xid" && c.Code == 79 && c.Status == health.Unhealthy && c.Repair == health.RepairReboot {
				return true
			}
		}
	}
	return false
}

// TestXIDSurvivesKill9: an agent is killed while it reads the journal, and again when it reports the
// XID. The next one reports the XID.
func TestXIDSurvivesKill9(t *testing.T) {
	t.Parallel()
	dir := xidJournal(t)
	f := agenttest.New(t)
	c := configFor(f)
	c.HealthChecks = "all"
	c.NvidiaSMI = agenttest.Stub(t, `[ "$1" = nvlink ] && exit 0
echo "0, GPU-11111111-2222-3333-4444-555555555555, 00000000:3B:00.0, NVIDIA H100, Reboot, 0, 0, No, No, No, 0, 0, [N/A], [N/A], 40, 0x1, [N/A]"`)
	killed := make(chan struct{})
	f.OnWait = func(int) error {
		first := false
		f.Note(func() {
			select {
			case <-killed:
			default:
				if first = xidReported(f); first {
					close(killed)
				}
			}
		})
		if first {
			return schema.NewError(schema.KindServiceUnavailable, "the answer is lost")
		}
		return nil
	}
	run := func() *agentProcess {
		return startProcessWith(t, c, "PATH="+dir+":"+os.Getenv("PATH"), "GPUAAS_NVIDIA_SMI="+c.NvidiaSMI)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kill"), nil, 0o600))
	a := run()
	eventually(t, "the end of the first agent", func() bool { return !exists(filepath.Join(dir, "kill")) })
	_ = a.cmd.Wait() // it was killed
	f.Note(func() { require.False(t, xidReported(f)) })

	a = run()
	<-killed
	a.kill()
	require.FileExists(t, filepath.Join(c.StateDir, "health.json"))

	f.Deserted()
	f.Note(func() { f.Heartbeats = nil })
	b := run()
	f.Until("the XID", func() bool { return xidReported(f) })
	b.kill()
	var stored struct {
		Events []json.RawMessage `json:"events"`
	}
	raw, err := os.ReadFile(filepath.Join(c.StateDir, "health.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &stored))
	require.Len(t, stored.Events, 1, "once")
}
