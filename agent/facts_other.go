//go:build !linux

package agent

import (
	"os/exec"
	"runtime"
	"strconv"
	"strings"
)

// sysctl asks the platform for one value; "" when it does not tell.
func sysctl(name string) string {
	cmd := exec.Command("sysctl", "-n", name)
	cmd.Env = childEnv()
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

func (h hostFacts) kernel() string { return sysctl("kern.osrelease") }

func platformName() string { return runtime.GOOS }

func platformMemory() int64 {
	n, _ := strconv.ParseInt(sysctl("hw.memsize"), 10, 64) //nolint:errcheck // zero means unknown
	return n
}

// bootID is the same from one boot to the next and differs between boots.
func bootID(string) string { return sysctl("kern.bootsessionuuid") }

// uptime is the host's, in whole seconds; zero when unknown.
func uptime(string) int64 { return 0 }
