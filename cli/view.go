package cli

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// view shows a followed operation on stderr. note explains why the state may be
// outdated, if it may.
type view func(st lifecycle.OperationStatus, note string)

func (e *env) newView(r followRequest) view {
	switch {
	case r.quiet:
		return func(lifecycle.OperationStatus, string) {}
	case !e.tty.err:
		return (&plainView{target: r.target, message: e.message, seen: map[string]string{}}).show
	}
	return (&liveView{env: e, target: r.target, out: e.stderr, color: !e.noColor}).show
}

// plainView writes one line for each change of a phase.
type plainView struct {
	target  target
	message func(format string, args ...any)
	// seen maps a phase to its state and attempt last written, and contains the
	// notes that were written.
	seen map[string]string
}

func (v *plainView) show(st lifecycle.OperationStatus, note string) {
	once := func(format, text string) {
		if text != "" && v.seen[text] == "" {
			v.seen[text] = "written"
			v.message(format, text)
		}
	}
	once("note: %s", note)
	for _, p := range st.Operation.Phases {
		state := fmt.Sprintf("%s %d", p.State, p.Attempt)
		if p.State == lifecycle.PhasePending || v.seen[p.Name] == state {
			continue
		}
		v.seen[p.Name] = state
		v.message("%s %s: %s", st.Operation.Action, v.target.name(), phaseLine(p))
	}
	once("what to do: %s", hint(v.target, st.Operation))
}

// phaseLine is a phase in words, for example "drain completed after 12s".
func phaseLine(p lifecycle.Phase) string {
	line := fmt.Sprintf("%s %s", p.Name, p.State)
	if p.Attempt > 1 {
		line += fmt.Sprintf(" (attempt %d)", p.Attempt)
	}
	if p.StartedAt != nil && p.EndedAt != nil {
		line += " after " + took(p.EndedAt.Sub(*p.StartedAt))
	}
	if p.Reason != "" {
		line += ": " + p.Reason
	}
	return line
}

// liveView draws one line for each phase and redraws them in place.
type liveView struct {
	env    *env
	target target
	out    io.Writer
	color  bool
	lines  int // drawn before
	frame  int
}

// spinner is one frame of the running mark for each redraw.
const spinner = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"

func (v *liveView) show(st lifecycle.OperationStatus, note string) {
	now, op := v.env.clock.now(), st.Operation
	title := fmt.Sprintf("%s %s  %s  %s", op.Action, v.target.name(), op.Status, elapsed(op.StartedAt, op.EndedAt, now))
	lines := []string{v.paint(bold, v.cut(title, 0))}
	titles := 0
	for _, p := range op.Phases {
		titles = max(titles, utf8.RuneCountInString(p.Title))
	}
	for _, p := range op.Phases {
		lines = append(lines, v.phase(p, titles, now))
	}
	if h := hint(v.target, op); h != "" {
		lines = append(lines, v.paint(dim, "  "+v.cut("what to do: "+h, 2)))
	}
	if note != "" {
		lines = append(lines, v.paint(dim, "  "+v.cut(note, 2)))
	}
	var b strings.Builder
	if v.lines > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", v.lines)
	}
	for _, l := range lines {
		b.WriteString("\r\x1b[2K" + l + "\n")
	}
	if v.lines > len(lines) {
		b.WriteString("\x1b[J") // the rest of an earlier, longer drawing
	}
	io.WriteString(v.out, b.String()) //nolint:errcheck // there is no other place for messages
	v.lines = len(lines)
	v.frame++
}

// elapsed is how long something took, or takes so far; empty before its start.
func elapsed(from, to *time.Time, now time.Time) string {
	switch {
	case from == nil:
		return ""
	case to == nil:
		return span(now.Sub(*from))
	}
	return took(to.Sub(*from))
}

// phase is one phase's line; titles is the width of the titles' column.
func (v *liveView) phase(p lifecycle.Phase, titles int, now time.Time) string {
	mark, style := v.mark(p.State)
	text := fmt.Sprintf("%-*s %7s", titles, p.Title, elapsed(p.StartedAt, p.EndedAt, now))
	if p.Attempt > 1 {
		text += fmt.Sprintf("  attempt %d", p.Attempt)
	}
	if p.Reason != "" {
		text += "  " + p.Reason
	}
	return "  " + v.paint(style, mark) + " " + v.cut(strings.TrimRight(text, " "), 4)
}

func (v *liveView) mark(s lifecycle.PhaseState) (mark string, style int) {
	switch s {
	case lifecycle.PhaseRunning:
		frames := []rune(spinner)
		return string(frames[v.frame%len(frames)]), cyan
	case lifecycle.PhaseParked:
		return "!", yellow
	case lifecycle.PhaseCompleted, lifecycle.PhaseForced:
		return "✓", green
	case lifecycle.PhaseSkipped:
		return "-", dim
	case lifecycle.PhaseFailed, lifecycle.PhaseCanceled:
		return "✗", red
	}
	return "·", dim
}

// The styles of paint: numbers of the terminal's own.
const (
	bold   = 1
	dim    = 2
	red    = 31
	green  = 32
	yellow = 33
	cyan   = 36
)

func (v *liveView) paint(style int, s string) string {
	if !v.color {
		return s
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", style, s)
}

// cut cleans a text and keeps it on one line of the terminal: a wrapped line
// would break the redraw in place.
func (v *liveView) cut(s string, indent int) string {
	s = strings.ReplaceAll(clean(s), "\n", " ")
	room := v.env.tty.width()
	if room <= 0 {
		room = 80
	}
	room -= indent + 1
	if utf8.RuneCountInString(s) <= room {
		return s
	}
	return string([]rune(s)[:max(room-1, 0)]) + "…"
}
