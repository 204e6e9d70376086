package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// events are the lines of go test -json for one package, each written as "ACTION TEST" or
// "ACTION" for the package itself.
func events(lines ...string) string {
	var b strings.Builder
	for _, l := range lines {
		action, test, _ := strings.Cut(l, " ")
		output := ""
		if action == "output" {
			output, test = test, ""
		}
		b.WriteString(`{"Action":"` + action + `","Package":"p","Test":"` + test + `","Output":"` + output + `"}` + "\n")
	}
	return b.String()
}

func TestReport(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		events   string
		problems int
		out      string
	}{
		"all passed": {events("run A", "pass A", "pass"), 0, ""},
		"repeated": {events("run A", "fail A", "run B", "pass B", "fail", "run A", "pass A", "pass"), 0,
			"== tests that failed, and passed when they were repeated; find out why:\n  p A\n"},
		"failed again": {events("run A", "fail A", "fail", "run A", "fail A", "fail"), 0, ""},
		"no test ran, and the repetition of nothing passed": {events("fail", "pass"), 1,
			"p: it failed, and none of its tests did\n"},
		"failed after its tests": {events("run A", "pass A", "fail", "pass"), 1, "p: it failed, and none of its tests did\n"},
		"ended in a test": {events("run A", "fail A", "run B", "fail", "run A", "pass A", "run B", "pass B", "pass"), 1,
			"p: its process ended during B\n== tests that failed, and passed when they were repeated; find out why:\n  p A\n"},
		"killed between tests": {events("run A", "fail A", "output signal: killed", "fail", "run A", "pass A", "pass"), 1,
			"p: its process ended: signal: killed\n== tests that failed, and passed when they were repeated; find out why:\n  p A\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "events.json")
			require.NoError(t, os.WriteFile(file, []byte(c.events), 0o600))
			s, out := suites{}, strings.Builder{}
			require.NoError(t, s.read(file))
			require.Equal(t, c.problems, s.print(&out))
			require.Equal(t, c.out, out.String())
		})
	}
}

func TestBrokenEvents(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "events.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"Action":"run","Pack`), 0o600))
	require.ErrorContains(t, suites{}.read(file), file, "a suite that was cut")
	require.Error(t, suites{}.read(file+".gone"))
}
