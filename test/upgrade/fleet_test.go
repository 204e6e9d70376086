package upgrade

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/harness"
)

// fleet is a running gpuaas-fleet: simulated nodes with the real agent of a version.
type fleet struct {
	cmd *exec.Cmd
	// log is the file of the agents' logs.
	log  string
	read sync.WaitGroup

	mu   sync.Mutex
	line string // the last report
}

// prefix begins the host name of each node of the fleet.
const prefix = "up"

// slow is the share of the nodes that need between half and nine tenths of a task's time limit: up to two
// minutes for a drain. The others need taskTime.
const (
	slow     = "slow=80%"
	taskTime = "2s..12s"
)

// startFleet starts the nodes of a version, which use the balancers.
func startFleet(t *testing.T, c *control, r release, size int) *fleet {
	t.Helper()
	f := &fleet{log: filepath.Join(c.dir, "fleet.log")}
	f.cmd = exec.Command(r.program("gpuaas-fleet"), strconv.Itoa(size), "--state", filepath.Join(c.dir, "fleet"), "--prefix", prefix,
		"--region", "region-1", "--task-time", taskTime, "--misbehave", slow, "--workloads", "1", "--report-every", "1s", "--log", f.log, "--log-level", "info")
	f.cmd.Env = append(os.Environ(), "GPUAAS_API_URL=http://"+c.admin.address(), "GPUAAS_NODE_API_URL=https://"+c.node.address(),
		"GPUAAS_API_TOKEN="+c.stack.Getenv("GPUAAS_API_TOKEN"))
	out, err := f.cmd.StdoutPipe()
	require.NoError(t, err)
	var faults harness.Buffer
	f.cmd.Stderr = &faults
	require.NoError(t, f.cmd.Start())
	f.read.Go(func() { f.follow(out) })
	t.Cleanup(func() {
		f.stop(t)
		if t.Failed() {
			t.Log(lastLines(faults.String(), 3))
		}
	})
	return f
}

func (f *fleet) follow(out io.Reader) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		f.mu.Lock()
		f.line = lines.Text()
		f.mu.Unlock()
	}
}

// stop interrupts the fleet and waits for its end.
func (f *fleet) stop(t *testing.T) {
	t.Helper()
	if f.cmd.ProcessState != nil {
		return
	}
	require.NoError(t, f.cmd.Process.Signal(syscall.SIGINT))
	f.read.Wait()
	require.NoError(t, f.cmd.Wait())
}

// count is a number of the last report; -1 before the first.
func (f *fleet) count(t *testing.T, name string) int {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	m := regexp.MustCompile(`\b` + name + `=(\d+)`).FindStringSubmatch(f.line)
	if m == nil {
		return -1
	}
	n, err := strconv.Atoi(m[1])
	require.NoError(t, err)
	return n
}

// accepted counts how often the nodes accepted each task for its execution, by task ID, from the
// nodes' own logs.
func (f *fleet) accepted(t *testing.T) map[string]int {
	t.Helper()
	file, err := os.Open(f.log)
	require.NoError(t, err)
	defer file.Close()
	times := map[string]int{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			Message string `json:"msg"`
			TaskID  string `json:"task_id"`
		}
		require.NoError(t, json.Unmarshal(lines.Bytes(), &line), lines.Text())
		if line.Message == "task accepted" {
			times[line.TaskID]++
		}
	}
	require.NoError(t, lines.Err())
	return times
}
