package libvirt_test

import (
	"strings"
	"testing"

	"github.com/gpuaas/gpuaas/test/conformance/provider"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, h := range hosts() {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			provider.Run(t, func(t *testing.T) provider.Target {
				t.Helper()
				if h.name == "real" {
					skipRecorded(t)
				}
				return h.open(t).target()
			})
		})
	}
}

// skipRecorded skips the cases of a real host in which libvirt has no part: nothing reaches it, or
// only the adapter reads what it answers. They run with the recorder; a machine takes seconds.
func skipRecorded(t *testing.T) {
	t.Helper()
	_, name, _ := strings.Cut(t.Name(), "/real/")
	for _, part := range []string{"spec/", "secrets/", "auth", "unavailable", "garbage", "lost_request", "capacity", "quota", "slow", "flapping", "is_an_error"} {
		if strings.Contains(name, part) {
			t.Skip("libvirt has no part in this case; the recorder runs it")
		}
	}
}
