package host_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/health/device"
	"github.com/gpuaas/gpuaas/schema/health/host"
)

var update = flag.Bool("update", false, "rewrite the generated part of docs/health-checks.md")

const (
	doc      = "../../../docs/health-checks.md"
	beginXID = "<!-- XIDs: written by go test ./schema/health/host -run TestHealthChecksDoc -update -->\n"
	endXID   = "<!-- end of XIDs -->"
)

// TestHealthChecksDoc compares docs/health-checks.md with the checkers and the table of XIDs.
func TestHealthChecksDoc(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(doc)
	require.NoError(t, err)
	text := string(data)
	checkers, err := host.Checkers()
	require.NoError(t, err)
	thresholds := health.Thresholds(checkers)
	maps.Copy(thresholds, health.Thresholds(health.NewDefaultCheckers()))
	require.Equal(t, len(thresholds), strings.Count(text, "\n| `"), "one row for each checker")
	for name, threshold := range thresholds {
		require.Contains(t, text, fmt.Sprintf("\n| `%s` | %s |", name, short(threshold.String())))
	}
	before, rest, _ := strings.Cut(text, beginXID)
	_, after, found := strings.Cut(rest, endXID)
	require.True(t, found, "the document has no markers for the XIDs")
	want := before + beginXID + xidTable(t) + endXID + after
	if *update {
		require.NoError(t, os.WriteFile(doc, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, text, "run go test ./schema/health/host -run TestHealthChecksDoc -update")
}

// short returns a duration without its zero seconds.
func short(d string) string {
	if strings.HasSuffix(d, "m0s") {
		return strings.TrimSuffix(d, "0s")
	}
	return d
}

func xidTable(t *testing.T) string {
	t.Helper()
	xids, err := device.XIDs()
	require.NoError(t, err)
	var b strings.Builder
	b.WriteString("| XID | meaning | repair | sources |\n| --- | --- | --- | --- |\n")
	for _, code := range xids.Codes() {
		row := xids.Lookup(code, "")
		e := device.Event{Code: code}
		repair := row.RepairOf(e)
		e.Fatal = true
		fatal := row.RepairOf(e)
		if repair == health.RepairNone && fatal == repair && !row.Disagree() {
			continue
		}
		cure := "`" + string(repair) + "`"
		if fatal != repair {
			cure += ", `" + string(fatal) + "` if Fatal"
		}
		var says []string
		for _, source := range slices.Sorted(maps.Keys(row.Says)) {
			says = append(says, source+": "+row.Says[source])
		}
		fmt.Fprintf(&b, "| %d | %s | %s | %s |\n", code, row.Meaning, cure, strings.Join(says, ", "))
	}
	return b.String()
}
