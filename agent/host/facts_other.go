//go:build !linux

package host

import (
	"context"
	"strconv"
	"strings"

	"github.com/gpuaas/gpuaas/agent/internal/command"
)

// sysctl reads one value of the platform. It returns "" if there is none.
func sysctl(name string) string {
	out, _, _ := command.Runner{}.Run(context.Background(), 4<<10, "sysctl", "-n", name)
	return strings.TrimSpace(out)
}

func (h Host) kernel() string { return sysctl("kern.osrelease") }

func platformMemory() int64 {
	n, _ := strconv.ParseInt(sysctl("hw.memsize"), 10, 64) //nolint:errcheck // zero means unknown
	return n
}

// BootID is constant during one boot and differs between boots.
func BootID(string) string { return sysctl("kern.bootsessionuuid") }

// Uptime returns the host's uptime in whole seconds; zero means unknown.
func Uptime(string) int64 { return 0 }
