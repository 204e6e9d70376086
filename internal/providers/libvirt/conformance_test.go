package libvirt_test

import (
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
				return h.open(t).target()
			})
		})
	}
}
