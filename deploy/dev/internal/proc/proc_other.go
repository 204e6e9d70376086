//go:build !linux

package proc

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// BootID is empty: start times are dates on this system.
func BootID() string { return "" }

// StartTime returns when a process started; "" if there is no such process or it
// is a zombie.
func StartTime(pid int) string {
	cmd := exec.Command("ps", "-o", "stat=,lstart=", "-p", strconv.Itoa(pid)) //nolint:noctx // returns immediately
	cmd.Env = []string{"LC_ALL=C", "PATH=" + os.Getenv("PATH")}
	out, err := cmd.Output()
	state, started, ok := strings.Cut(strings.TrimSpace(string(out)), " ")
	if err != nil || !ok || strings.HasPrefix(state, "Z") {
		return ""
	}
	return strings.TrimSpace(started)
}

// Session is not supported on this system: only the first process of a workload
// counts.
func Session(int, string) []int { return nil }
