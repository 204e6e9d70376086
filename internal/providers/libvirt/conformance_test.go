package libvirt_test

import (
	"flag"
	"slices"
	"strings"
	"testing"

	"github.com/gpuaas/gpuaas/test/conformance/provider"
)

// everyCase makes the suite run all its cases on a real host, which takes up to half an hour: go
// test ./internal/providers/libvirt -run TestConformance/real -timeout 60m -args -every-case.
var everyCase = flag.Bool("every-case", false, "run all cases of the conformance suite on a real host")

// sample are the cases that always run on a real host.
func sample() []string {
	return []string{
		"create/twice_with_one_ID_is_one_machine", "create/two_adapters_at_once_are_one_machine", "boot/is_issued_once_for_a_creation",
		"describe/by_owner_tag_only", "describe/of_a_foreign_machine_is_missing", "power/on_starts_a_stopped_machine",
		"power/reset_keeps_a_running_machine_running", "console/of_a_running_machine_is_bounded", "delete/leaves_nothing",
		"delete/with_a_foreign_external_ID_keeps_the_foreign_machine", "list/leaves_out_foreign_machines",
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, h := range hosts() {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			provider.Run(t, func(t *testing.T) provider.Target {
				t.Helper()
				onReal := h.name == "real"
				if onReal {
					skipOnReal(t)
				}
				target := h.open(t).target()
				target.Sample = onReal && !*everyCase
				return target
			})
		})
	}
}

// skipOnReal skips the cases of a real host that are not in the sample and, with every case, those
// in which libvirt has no part: nothing reaches it, or only the adapter reads what it answers. The
// recorder runs all of them.
func skipOnReal(t *testing.T) {
	t.Helper()
	_, name, _ := strings.Cut(t.Name(), "/real/")
	if !*everyCase {
		if !slices.Contains(sample(), name) {
			t.Skip("not in the sample of cases for a real host; -args -every-case runs it")
		}
		return
	}
	for _, part := range []string{"spec/", "secrets/", "auth", "unavailable", "garbage", "lost_request", "capacity", "quota", "slow", "flapping", "is_an_error"} {
		if strings.Contains(name, part) {
			t.Skip("libvirt has no part in this case; the recorder runs it")
		}
	}
}
