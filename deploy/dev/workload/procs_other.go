//go:build !linux

package workload

import (
	"os/exec"
	"strconv"
	"strings"
)

// processTable looks at the processes of the host through ps.
type processTable struct{ boot string }

func newProcessTable() processTable { return processTable{boot: bootID()} }

func (t processTable) bootID() string { return t.boot }

// startTime returns when the process started, or "" when there is none or it is
// a zombie.
func (processTable) startTime(pid int) string {
	cmd := exec.Command("ps", "-o", "stat=,lstart=", "-p", strconv.Itoa(pid))
	cmd.Env = childEnv()
	out, err := cmd.Output()
	state, started, ok := strings.Cut(strings.TrimSpace(string(out)), " ")
	if err != nil || !ok || strings.HasPrefix(state, "Z") {
		return ""
	}
	return strings.TrimSpace(started)
}

// session is not known here: only the first process of a workload counts.
func (processTable) session(int, string) []int { return nil }
