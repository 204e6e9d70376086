package webui

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/test/testkit/browsertest"
	"github.com/gpuaas/gpuaas/test/testkit/stacktest"
)

// unseen lists the reasons without a page that this suite can show, and why.
func unseen() map[string]string {
	reasons := map[string]string{
		schema.ReasonNodeLocked:           "the page is that of agent_silent, with another reason",
		lifecycle.ReasonSeqReplayed:       "needs an agent that does not report its counters; the page is that of task_refused",
		lifecycle.ReasonUpgradeRolledBack: "needs a supervisor that starts the agent again; the page is that of release_rejected",
		lifecycle.ReasonStepUnknown:       "needs a worker of a version without the phase",
		string(lifecycle.RunFailed):       "needs a defect in a workflow; the page is that of run_terminated",
		string(lifecycle.RunLost):         "Temporal has no page of a deleted workflow",
		lifecycle.ReasonLastServer:        "needs a Kubernetes cluster; the page is that of drain_blocked",
		lifecycle.ReasonNodeAPIDown:       "needs an outage of the node API during a repair; the page is that of vault_unreachable",
		lifecycle.ReasonMachineSilent:     "needs a virtual machine; the page is that of agent_silent",
	}
	for _, p := range machine.Problems() {
		reasons[p.Reason] = "needs a provider that creates machines; the page is that of provider_silent"
	}
	return reasons
}

// TestEveryReason: each reason for which an operation parks is either tested in the browser,
// or has an explanation why not.
func TestEveryReason(t *testing.T) {
	t.Parallel()
	var reasons []string
	for _, r := range lifecycle.ParkReasons() {
		reasons = append(reasons, r.Reason)
	}
	var covered []string
	for reason := range scenes() {
		covered = append(covered, reason)
	}
	for reason, why := range unseen() {
		require.NotEmpty(t, why)
		covered = append(covered, reason)
	}
	require.ElementsMatch(t, reasons, covered)
}

// TestOnCall: docs/on-call.md names each reason in a heading or a table, and shows a
// screenshot of each page that this suite can show, and no others. A test in
// internal/archtest checks the commands.
func TestOnCall(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile(filepath.Join(stacktest.Root, "docs", "on-call.md"))
	require.NoError(t, err)
	require.Empty(t, missingReasons(string(doc)))
	shown := map[string]bool{}
	for _, m := range regexp.MustCompile(`!\[[^]]+\]\(images/([^)]+)\)`).FindAllStringSubmatch(string(doc), -1) {
		shown[m[1]] = true
	}
	for reason := range scenes() {
		require.True(t, shown[reason+".png"], "docs/on-call.md has no screenshot of %s", reason)
	}
	files, err := os.ReadDir(filepath.Join(stacktest.Root, "docs", "images"))
	require.NoError(t, err)
	for _, f := range files {
		if strings.HasPrefix(f.Name(), "console-") || strings.HasPrefix(f.Name(), "demo.") { // of docs/console.md and README.md
			continue
		}
		require.True(t, shown[f.Name()], "docs/on-call.md does not show %s", f.Name())
		delete(shown, f.Name())
		info, err := f.Info()
		require.NoError(t, err)
		require.Less(t, info.Size(), int64(browsertest.MaxScreenshot), f.Name())
	}
	require.Empty(t, shown, "missing in docs/images: run the suite with -args -screenshots docs/images")
}

// missingReasons lists the reasons that the document does not explain.
func missingReasons(doc string) (missing []string) {
	for _, r := range lifecycle.ParkReasons() {
		if !regexp.MustCompile("(?m)^(### |\\| )`" + r.Reason + "`").MatchString(doc) {
			missing = append(missing, r.Reason)
		}
	}
	return missing
}

func TestMissingReasons(t *testing.T) {
	t.Parallel()
	all := ""
	for _, r := range lifecycle.ParkReasons() {
		all += "### `" + r.Reason + "`\n"
	}
	require.Empty(t, missingReasons(all))
	require.Equal(t, []string{lifecycle.ReasonTimeout}, missingReasons(regexp.MustCompile("### `timeout`\n").ReplaceAllString(all, "As `timeout`\n")))
}
