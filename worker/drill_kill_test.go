package worker

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/diagnosis"
	"github.com/gpuaas/gpuaas/test/harness"
)

// drillChild is the variable that makes this program a process to kill. Its value is the path of a backup,
// or "drill".
const drillChild = "GPUAAS_TEST_DRILL_CHILD"

// TestDrillChild is the process that TestKilledDrill and TestKilledBackup kill.
func TestDrillChild(t *testing.T) {
	what := os.Getenv(drillChild)
	if what == "" {
		return
	}
	var err error
	if what == "drill" {
		_, err = Drill(t.Context(), DrillOptions{Getenv: os.Getenv, Progress: os.Stdout})
	} else {
		_, err = Backup(t.Context(), BackupOptions{File: what, Getenv: os.Getenv, Progress: os.Stdout})
	}
	require.NoError(t, err)
}

// killed runs a process, and kills it a random time after it wrote a line that contains says.
func (b *drillBench) killed(what, says string, after time.Duration) {
	b.t.Helper()
	cmd := exec.CommandContext(b.t.Context(), os.Args[0], "-test.run=^TestDrillChild$")
	cmd.Env = append(os.Environ(), drillChild+"="+what, "GPUAAS_DATABASE_URL="+b.url, "TMPDIR="+b.t.TempDir())
	out, err := cmd.StdoutPipe()
	require.NoError(b.t, err)
	require.NoError(b.t, cmd.Start())
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.Contains(lines.Text(), says) {
		continue
	}
	end := make(chan struct{})
	go func() {
		defer close(end)
		_, _ = io.Copy(io.Discard, out) // until the process ends
	}()
	select {
	case <-time.After(after):
	case <-end:
	}
	_ = cmd.Process.Kill() // it may have ended
	<-end
	_ = cmd.Wait()
	harness.Eventually(b.t, "the server ends the sessions of the process", func() bool {
		return b.number("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'gpuaas-drill' AND datname = current_database()") == 0
	})
}

// TestKilledDrill kills drills at random times of their steps. The next drill drops what is left, and finds
// no fault.
func TestKilledDrill(t *testing.T) {
	t.Parallel()
	b := newDrillBench(t)
	b.exec("CREATE TABLE bulk AS SELECT i, repeat(md5(i::text), 20) AS text FROM generate_series(1, 20000) i; CREATE INDEX ON bulk (text)")
	begun := time.Now()
	b.drill("")
	whole, left := time.Since(begun), 0
	for seed, step := range []string{"restoring", "restoring", "restoring", "dumping", "dumping", "restoring"} {
		t.Log(seed, step)
		after := time.Duration(rand.New(rand.NewPCG(uint64(seed), 1)).Int64N(int64(whole)))
		if seed == 0 { // in the restore, however fast the machine is now
			after = 0
		}
		b.killed("drill", step, after)
		names := b.databases()
		left += len(names)
		before := len(b.progress.String())
		results, faults := b.drill("")
		require.Empty(t, faults)
		require.Equal(t, diagnosis.OK, results["restore"])
		for _, name := range names {
			require.Contains(t, b.progress.String()[before:], "dropped "+name+", which a drill left that was killed\n")
		}
	}
	require.Positive(t, left, "a drill that was killed in its restore")
}

// TestKilledBackup kills backups at random times. A file with the name of the backup is a whole dump, and
// without one the next backup succeeds.
func TestKilledBackup(t *testing.T) {
	t.Parallel()
	b := newDrillBench(t)
	b.exec("CREATE TABLE bulk AS SELECT i, repeat(md5(i::text), 20) AS text FROM generate_series(1, 50000) i")
	begun := time.Now()
	b.dumped()
	whole, folder, incomplete := time.Since(begun), t.TempDir(), 0
	for seed := range uint64(6) {
		file := filepath.Join(folder, fmt.Sprint(seed))
		after := time.Duration(rand.New(rand.NewPCG(seed, 2)).Int64N(int64(whole)))
		if seed == 0 { // before its end, however fast the machine is now
			after = 0
		}
		b.killed(file, "dumping", after)
		if _, err := os.Stat(file); os.IsNotExist(err) {
			incomplete++
			_, err := b.backup(file)
			require.NoError(t, err)
		}
		_, faults := b.drill(file)
		require.Empty(t, faults)
	}
	require.Positive(t, incomplete, "a backup that was killed before its end")
}
