package health

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/health/host"
	"github.com/gpuaas/gpuaas/test/testkit/need"
)

// journal is a folder with journal files.
type journal struct {
	t      *testing.T
	folder string
	at     time.Time
	files  int
}

// newJournal makes the journal of a bench, for which the test needs journald's tools.
func newJournal(b *bench) *journal {
	b.t.Helper()
	for _, program := range []string{"journalctl", "/lib/systemd/systemd-journal-remote"} {
		need.Program(b.t, program, "run: sh tools/need.sh host")
	}
	j := &journal{t: b.t, folder: b.t.TempDir(), at: b.at.Add(-time.Hour)}
	b.conf.Journal = []string{"-D", j.folder}
	return j
}

// entry is one line of the kernel's or a program's log.
type entry struct{ boot, transport, message string }

// write adds a file with entries, as systemd-journal-remote writes them.
func (j *journal) write(entries ...entry) {
	j.t.Helper()
	j.files++
	var text strings.Builder
	for _, e := range entries {
		j.at = j.at.Add(time.Second)
		fmt.Fprintf(&text, "__REALTIME_TIMESTAMP=%d\n__MONOTONIC_TIMESTAMP=%d\n_BOOT_ID=%s\n_TRANSPORT=%s\n_HOSTNAME=gpu-17\nPRIORITY=3\n",
			j.at.UnixMicro(), j.at.UnixMicro()%1e12, journalBoot(e.boot), e.transport)
		text.WriteString("MESSAGE\n")
		var size [8]byte
		binary.LittleEndian.PutUint64(size[:], uint64(len(e.message)))
		text.Write(size[:])
		text.WriteString(e.message + "\n\n")
	}
	input := filepath.Join(j.t.TempDir(), "export")
	require.NoError(j.t, os.WriteFile(input, []byte(text.String()), 0o600))
	out, err := exec.CommandContext(j.t.Context(), "/lib/systemd/systemd-journal-remote", "-o",
		filepath.Join(j.folder, fmt.Sprintf("%d.journal", j.files)), input).CombinedOutput()
	require.NoError(j.t, err, "%s", out)
}

func kernel(message string) entry { return entry{testBoot, "kernel", message} }

const fallenOff = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."

// TestXIDInAReport: an XID of the kernel log is a condition with the repair of the vendor's table, for
// the GPU at its bus address. It stays over restarts of the agent and ends with the boot.
func TestXIDInAReport(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	j := newJournal(b)
	b.conf.SMI = smi(t, gpusThrough("sed s/None/Reboot/"))
	j.write(entry{laterBoot, "kernel", strings.Replace(fallenOff, "3b", "86", 1)}, kernel("usb 1-1: new device"), kernel(fallenOff),
		entry{testBoot, "syslog", strings.Replace(fallenOff, "3b", "86", 1)})
	got := b.check(b.monitor())
	c := got["gpu_xid "+firstUUID]
	require.Equal(t, health.Unhealthy, c.Status, "%+v", got)
	require.Equal(t, 79, c.Code)
	require.Equal(t, host.ReasonBusFault, c.Reason)
	require.Equal(t, health.RepairReboot, c.Repair)
	require.NotContains(t, got, "gpu_xid "+secondUUID, "a program and another boot are not the kernel of this boot")

	b.pass(time.Minute)
	m := b.monitor()
	c = b.check(m)["gpu_xid "+firstUUID]
	require.Equal(t, 2, c.Samples)
	require.Len(t, m.state.Events, 1, "the line was read once")

	j.write(kernel(strings.Replace(fallenOff, "3b", "86", 1)))
	require.Equal(t, 79, b.check(m)["gpu_xid "+secondUUID].Code)
	m.Reset([]string{secondUUID})
	require.NotContains(t, b.check(m), "gpu_xid "+secondUUID, "a reset ends it")
	require.NotContains(t, b.check(b.monitor()), "gpu_xid "+secondUUID)

	b.conf.BootID = laterBoot
	got = b.check(b.monitor())
	require.NotContains(t, got, "gpu_xid "+firstUUID)
	require.Equal(t, health.Healthy, got["gpu_xid"].Status)
}

// TestKilledAfterReading: an agent that is killed after it read the journal, before its state is
// stored, loses nothing: the next one reads the lines again.
func TestKilledAfterReading(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	j := newJournal(b)
	b.conf.SMI = smi(t, gpusThrough("sed s/None/Reboot/"))
	b.check(b.monitor())
	j.write(kernel(fallenOff))
	stored := b.conf.State
	b.conf.State.FS = fullDisk{}
	killed := b.monitor()
	require.Equal(t, 79, b.check(killed)["gpu_xid "+firstUUID].Code)
	b.conf.State = stored
	m := b.monitor()
	require.Empty(t, m.state.Events)
	require.Equal(t, 79, b.check(m)["gpu_xid "+firstUUID].Code)
	require.Len(t, m.state.Events, 1)
}

// TestHostileJournal: control characters, other bytes and long lines reach no report as they are, and a
// flood of one code does not displace another code.
func TestHostileJournal(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	j := newJournal(b)
	b.conf.SMI = smi(t, gpusThrough("sed s/None/Reboot/"))
	j.write(
		kernel(fallenOff), kernel("\x1b[31m\x00\xff"+strings.Repeat("A", 20000)),
		kernel("NVRM: Xid (PCI:0000:86:00): 48, pid=1, \x1b[2J\x07\xffDouble \"Bit\"\nECC Error"),
	)
	var flood []entry
	for i := range 3000 {
		flood = append(flood, kernel(fmt.Sprintf("NVRM: Xid (PCI:0000:86:00): 13, pid=%d, Graphics Exception", i)))
	}
	j.write(flood...)
	m := b.monitor()
	got := b.check(m)
	require.Equal(t, 79, got["gpu_xid "+firstUUID].Code)
	require.Equal(t, 48, got["gpu_xid "+secondUUID].Code)
	require.LessOrEqual(t, len(m.state.Events), maxSame+2)
	for _, c := range got {
		require.NotContains(t, c.Detail, "\x1b")
	}
}

// TestLargeJournal: a log that is larger than one call reads is read in pieces.
func TestLargeJournal(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	j := newJournal(b)
	b.conf.SMI = smi(t, gpusThrough("sed s/None/Reboot/"))
	var lines []entry
	for i := range 1500 {
		lines = append(lines, kernel(fmt.Sprintf("line %d %s", i, strings.Repeat("x", 2500))))
	}
	j.write(append(lines, kernel(fallenOff))...)
	require.Equal(t, 79, b.check(b.monitor())["gpu_xid "+firstUUID].Code)
}

// TestUnusableCursor: if the journal no longer accepts the cursor, the lines since the last one are read.
func TestUnusableCursor(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	j := newJournal(b)
	b.conf.SMI = smi(t, gpusThrough("sed s/None/Reboot/"))
	j.write(kernel("first"))
	m := b.monitor()
	b.check(m)
	require.NotEmpty(t, m.state.Cursor)
	m.state.Cursor = "no cursor"
	j.write(kernel(fallenOff))
	require.Equal(t, 79, b.check(m)["gpu_xid "+firstUUID].Code)
	require.NotEqual(t, "no cursor", m.state.Cursor)

	m.state.Cursor, m.state.ReadAt = kmsgCursor+testBoot+" 4711", time.Time{}
	require.Equal(t, health.Unhealthy, b.check(m)["gpu_xid "+firstUUID].Status)
	require.NotContains(t, m.state.Cursor, kmsgCursor)
}

// TestUnreadableJournal: without the log, its checks are unknown.
func TestUnreadableJournal(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	newJournal(b)
	b.conf.Journal = []string{"-D", "/no/such/folder"}
	got := b.check(b.monitor())
	require.Equal(t, health.Unknown, got["host_kernel"].Status)
	require.Equal(t, health.Healthy, got["host_memory"].Status)
}
