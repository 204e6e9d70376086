//go:build !linux

package host

import (
	"context"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/command"
)

const sysctlBytes = 4 << 10

// sysctl reads one value of the platform. It returns "" if there is none.
func sysctl(name string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	out, _, err := command.Runner{}.Run(ctx, sysctlBytes, "sysctl", "-n", name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(out)
}

func (h Host) kernel() string { return sysctl("kern.osrelease") }

func platformName() string { return runtime.GOOS }

func platformMemory() int64 {
	n, _ := strconv.ParseInt(sysctl("hw.memsize"), 10, 64) //nolint:errcheck // zero means unknown
	return n
}

// BootID is constant during one boot and differs between boots.
func BootID(string) string { return sysctl("kern.bootsessionuuid") }

// Uptime returns the host's uptime in whole seconds; zero means unknown.
func Uptime(string) int64 { return 0 }
