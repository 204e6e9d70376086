//go:build !linux

package dev

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// bootID is empty: start times are dates here.
func bootID() string { return "" }

// startTime answers when a process started; "" when there is none or it is a
// zombie.
func startTime(pid int) string {
	cmd := exec.Command("ps", "-o", "stat=,lstart=", "-p", strconv.Itoa(pid)) //nolint:noctx // answers at once
	cmd.Env = []string{"LC_ALL=C", "PATH=" + os.Getenv("PATH")}
	out, err := cmd.Output()
	state, started, ok := strings.Cut(strings.TrimSpace(string(out)), " ")
	if err != nil || !ok || strings.HasPrefix(state, "Z") {
		return ""
	}
	return strings.TrimSpace(started)
}
