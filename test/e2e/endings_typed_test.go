package e2e

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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

// legalRefusals are the codes with which a printed command may be rejected.
var legalRefusals = map[string]string{
	"decision_outdated":                      "the operation continued since the command was printed",
	"decision_outdated: operation_over":      "the operation ended since the command was printed",
	"decision_outdated: operation_abandoned": "the run ended since; the rejection prints the command that restores the node",
}

var errorLine = regexp.MustCompile(`(?m)^error: .*\(([a-z_]+(?:: [a-z_]+)?)\)$`)

// refusalOf is the code of the error message of a command: its kind, and its reason if it
// has one. It is "" without an error message.
func refusalOf(stderr string) string {
	if found := errorLine.FindStringSubmatch(stderr); found != nil {
		return found[1]
	}
	return ""
}

// TestLegalRefusals: only the kind and the reason together make a rejection legal.
func TestLegalRefusals(t *testing.T) {
	t.Parallel()
	for stderr, legal := range map[string]bool{
		"error: it continued (now) (decision_outdated)\nnext:  gpuaas op show gpu-17\n":      true,
		"error: it has ended (decision_outdated: operation_over)\nnext:  gpuaas op show x\n": true,
		"error: it has ended (invalid_request: operation_over)\n":                            false,
		"error: it has ended (operation_over)\n":                                             false,
		"error: it is unfit (decision_outdated: decision_unfit)\n":                           false,
		"it continued (decision_outdated)\n":                                                 false,
		"":                                                                                   false,
	} {
		require.Equal(t, legal, legalRefusals[refusalOf(stderr)] != "", stderr)
	}
}

// typeLine types a printed command about a node, with a reason in place of the word TEXT. A
// command that asks a question is repeated with the answer yes. The command must succeed, or
// be rejected with a code of legalRefusals, which typeLine returns, or one of legal.
func typeLine(t *testing.T, host, line string, legal ...string) (r result, refused string) {
	t.Helper()
	words := strings.Fields(strings.ReplaceAll(line, lifecycle.ReasonPlaceholder, "typed"))
	if len(words) < 2 || words[0] != "gpuaas" {
		t.Errorf("%s: %q is no command", host, line)
		return r, ""
	}
	r = run(t, words[1:]...)
	if r.code == schema.ExitUsage && strings.Contains(r.stderr, "--yes") {
		r = run(t, append(words[1:], "--yes")...)
	}
	if r.code == schema.ExitDone {
		return r, ""
	}
	if refused = refusalOf(r.stderr); legalRefusals[refused] == "" && !slices.Contains(legal, refused) {
		t.Errorf("%s: %s: exit %d %s%s", host, line, r.code, r.stdout, r.stderr)
	}
	if (strings.HasSuffix(refused, ": operation_abandoned") || refused == notClaimed) && !strings.Contains(r.stderr, "next:  "+lifecycle.RehydrateCommand(host)+"\n") {
		t.Errorf("%s: %s: no command that helps: %s", host, line, r.stderr)
	}
	return r, refused
}

// typeLine types a printed command about the case and counts its rejection.
func (s *sweep) typeLine(e *endedRun, line string) {
	e.typed = append(e.typed, line)
	if strings.HasPrefix(line, "start a gpuaas-worker") {
		return // no command of ours: the test starts the provider again later
	}
	_, refused := typeLine(s.T, e.host, line)
	if refused == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused == nil {
		s.refused = map[string]int{}
	}
	s.refused[refused]++
}
