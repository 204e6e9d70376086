package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/testkit/need"
)

// TestMain lets the test binary run the roles that benchmarks start as separate
// processes.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "role-") {
		main()
	}
	os.Exit(m.Run())
}

// Every benchmark runs at a small size and reports its figures. Speed is not asserted,
// so the benchmarks run in parallel.
func TestBenchmarksRun(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts whole stacks")
	}
	for _, b := range benches() {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			results := t.TempDir()
			var out, stderr strings.Builder
			code := run(t.Context(), []string{"-small", "-bin", "../../bin/gpuaas", "-results", results, b.name}, strings.NewReader(""), &out, &stderr)
			require.Zero(t, code, "%s\n%s", stderr.String(), out.String())
			raw, err := os.ReadFile(filepath.Join(results, b.name+".json"))
			require.NoError(t, err)
			var r report
			require.NoError(t, json.Unmarshal(raw, &r))
			require.NotEmpty(t, r.Figures)
			for _, f := range r.Figures {
				require.Contains(t, out.String(), f.Name)
			}
			require.Equal(t, b.small, r.Size)
			require.NotEmpty(t, r.Machine["go"])
			require.NotEmpty(t, r.Load[1])
		})
	}
}

func TestFigureGoals(t *testing.T) {
	r := newReport("x", 1)
	r.most("under", "", 1, 10, 0.1)
	r.most("over", "", 2, 10, 0.1)
	r.least("enough", "", 7, 10, 0.7)
	r.least("too little", "", 6, 10, 0.7)
	r.number("number", "", 56, 55)
	r.most("no goal", "", 5, 1, 0)
	var met []bool
	for _, f := range r.Figures {
		met = append(met, f.Met)
	}
	require.Equal(t, []bool{true, false, true, false, false, true}, met)
}

func TestQuantiles(t *testing.T) {
	var all []time.Duration
	for i := 100; i > 0; i-- {
		all = append(all, time.Duration(i)*time.Millisecond)
	}
	require.InDelta(t, 51, quantile(all, 0.5), 0.01)
	require.InDelta(t, 100, quantile(all, 0.99), 0.01)
	require.Zero(t, quantile(nil, 0.5))
	require.InDelta(t, 2, median([]float64{3, 1, 2}), 0)
}

// The CPU time of an exited child stays counted, and a running process has memory.
func TestProcessUsage(t *testing.T) {
	_, err := os.Stat("/proc/self/smaps_rollup")
	need.That(t, err == nil, "there is no /proc here")
	m, err := memoryOf(os.Getpid())
	require.NoError(t, err)
	require.Greater(t, m.Resident, m.Private/2)
	require.Positive(t, m.Private)
	meter := startMeter(map[string]int{"self": os.Getpid()})
	used := 0.0
	for end := time.Now().Add(time.Minute); used == 0 && time.Now().Before(end); used = total(meter.used()) {
		for range 100 {
			_ = fakeEnvelope()
		}
	}
	require.Positive(t, used)
	_, err = memoryOf(1 << 30)
	require.Error(t, err)
}

// The fleet is a child of the benchmark. Its CPU does not count for the load.
func TestChildProcessCountedOnce(t *testing.T) {
	_, err := os.Stat("/proc/self/stat")
	need.That(t, err == nil, "there is no /proc here")
	child := exec.CommandContext(t.Context(), "sh", "-c", "read go; i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; echo done; read end")
	in, err := child.StdinPipe()
	require.NoError(t, err)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	both := startMeter(map[string]int{"self": os.Getpid(), "child": child.Process.Pid})
	alone := startMeter(map[string]int{"self": os.Getpid()})
	_, err = in.Write([]byte("go\n"))
	require.NoError(t, err)
	_, err = out.Read(make([]byte, 8))
	require.NoError(t, err)
	used, whole := both.used(), alone.used()
	require.Positive(t, used["child"])
	require.Less(t, used["self"], whole["self"])
	require.NoError(t, in.Close())
	_ = child.Wait() // its exit code says that it read an end of input
}
