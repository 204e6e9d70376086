//go:build !linux

package dev

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// bootID is empty: start times are dates on this system.
func bootID() string { return "" }

// startTime returns when a process started; "" if there is no such process or it
// is a zombie.
func startTime(pid int) string {
	cmd := exec.Command("ps", "-o", "stat=,lstart=", "-p", strconv.Itoa(pid)) //nolint:noctx // returns immediately
	cmd.Env = []string{"LC_ALL=C", "PATH=" + os.Getenv("PATH")}
	out, err := cmd.Output()
	state, started, ok := strings.Cut(strings.TrimSpace(string(out)), " ")
	if err != nil || !ok || strings.HasPrefix(state, "Z") {
		return ""
	}
	return strings.TrimSpace(started)
}
