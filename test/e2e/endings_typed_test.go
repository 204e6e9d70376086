package e2e

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

// typeUntil types what gpuaas prints about the stuck operations, each command once per
// parking, until done holds for all cases.
func (s *sweep) typeUntil(what string, all []*endedRun, done func(*endedRun) bool) {
	s.Helper()
	s.Cleanup(func() {
		for _, e := range all {
			if s.Failed() && !e.ended {
				s.Logf("open: %s, %s; typed: %q", e, run(s.T, "op", "show", e.operation.OperationID).stdout, e.typed)
			}
		}
	})
	harness.Poll(s.T, func() bool {
		byOperation := map[string]*endedRun{}
		for _, e := range all {
			if e.ended = done(e); !e.ended {
				byOperation[e.operation.OperationID] = e
			}
		}
		var lines []*endedRun
		for _, row := range decode[wire.StuckList](s.T, ok(s.T, "stuck", "--limit", "0", "-o", "json")).Stuck {
			e := byOperation[row.OperationID]
			if e == nil || row.Stuck == nil {
				continue
			}
			if seen := row.Stuck.Since.String() + row.Stuck.Next; seen != e.seen {
				e.seen, e.printed = seen, row.Stuck.Next
				lines = append(lines, e)
			}
		}
		s.each(lines, s.typePrinted)
		return len(byOperation) == 0
	}, fleetTimeout, time.Second, what)
}

// nextLine is the line of a page that names the command to type.
var nextLine = regexp.MustCompile(`(?m)^\s*Next:\s+(gpuaas .*)$`)

// typePrinted types the command that stuck printed, or in other cases the one on the page
// of op show or node show.
func (s *sweep) typePrinted(e *endedRun) {
	line := e.printed
	if page := [][]string{nil, {"op", "show", e.operation.OperationID}, {"node", "show", e.id}}[e.number%3]; page != nil {
		found := nextLine.FindStringSubmatch(ok(s.T, page...).stdout)
		if found == nil { // the operation continued meanwhile
			e.seen = ""
			return
		}
		line = found[1]
	}
	s.typeLine(e, line)
}

// legalRefusals are the reasons for which a printed command may be rejected.
var legalRefusals = map[string]string{
	"decision_outdated":   "the operation continued since the command was printed",
	"operation_over":      "the operation ended since the command was printed",
	"operation_abandoned": "the run ended since; the rejection prints the command that restores the node",
}

// typeLine types a printed command, with a reason in place of the word TEXT. A command
// that asks a question is repeated with the answer yes. The command must succeed, or be
// rejected for a reason in legalRefusals.
func (s *sweep) typeLine(e *endedRun, line string) {
	e.typed = append(e.typed, line)
	if strings.HasPrefix(line, "start a gpuaas-worker") {
		return // no command of ours: the test starts the provider again later
	}
	words := strings.Fields(strings.ReplaceAll(line, lifecycle.ReasonPlaceholder, "typed"))
	if !assertCommand(s.T, line, words) {
		return
	}
	r := run(s.T, words[1:]...)
	if r.code == schema.ExitUsage && strings.Contains(r.stderr, "--yes") {
		r = run(s.T, append(words[1:], "--yes")...)
	}
	if r.code == schema.ExitDone {
		return
	}
	reason := refusal.FindStringSubmatch(r.stderr)
	if len(reason) == 0 || legalRefusals[reason[1]] == "" {
		s.Errorf("%s: %s: exit %d %s%s", e, line, r.code, r.stdout, r.stderr)
		return
	}
	if reason[1] == "operation_abandoned" && !strings.Contains(r.stderr, "next:  "+lifecycle.RehydrateCommand(e.host)) {
		s.Errorf("%s: %s: no command that helps: %s", e, line, r.stderr)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused == nil {
		s.refused = map[string]int{}
	}
	s.refused[reason[1]]++
}

// refusal is the last word in the code of an error message, which is its reason if it has
// one and otherwise its kind.
var refusal = regexp.MustCompile(`(?m)^error: .*\((?:[a-z_]+: )?([a-z_]+)\)$`)

func assertCommand(t *testing.T, line string, words []string) bool {
	t.Helper()
	if len(words) > 1 && words[0] == "gpuaas" {
		return true
	}
	t.Errorf("%q is no command", line)
	return false
}
