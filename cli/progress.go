package cli

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// progress shows a followed operation on stderr: on a terminal as one line for each
// phase, which it redraws in place, else as one line for each change of a phase.
type progress struct {
	env     *env
	request followRequest
	// seen contains what was written: each phase with its state and attempt, and the
	// messages.
	seen map[string]string
	// lines is the height of the block that was drawn last, frame the number of redraws.
	lines, frame int
}

func newProgress(e *env, r followRequest) *progress {
	return &progress{env: e, request: r, seen: map[string]string{}}
}

// show shows the state. about explains why the state may be outdated, or what is retried.
func (p *progress) show(st lifecycle.OperationStatus, about note) {
	op, t := st.Operation, p.request.target
	if p.request.quiet {
		return
	}
	if p.env.tty.err {
		p.announce(op)
		p.draw(op, about.text)
		return
	}
	if about.text != "" {
		p.once(about.key, "note: "+about.text)
	}
	for _, phase := range op.Phases {
		state := fmt.Sprintf("%s %d", phase.State, phase.Attempt)
		if phase.State != lifecycle.PhasePending && p.seen[phase.Name] != state {
			p.seen[phase.Name] = state
			p.env.message("%s %s: %s", op.Action, t.name(), phaseLine(phase))
		}
	}
	p.announce(op)
}

// announce writes what the operator must do, once.
func (p *progress) announce(op lifecycle.Operation) {
	t := p.request.target
	if h := hint(t, op); h != "" {
		p.once(h, "what to do: "+h)
	}
	if p.request.throughParks && parkedAgain(op, p.request.decided) && op.Stuck != nil {
		// A retry in the background that fails for another reason changes the options of the same park.
		p.once("park "+op.Stuck.Since.String()+" "+op.Stuck.Reason, append(parkLines(t, op, p.env.clock.now()),
			"still watching: the operation continues after a decision. Ctrl-C stops the watch, not the operation")...)
	}
}

// once writes lines that were not written before. They are not cut, since they contain
// commands, and stay above a block that is redrawn.
func (p *progress) once(key string, lines ...string) {
	if p.seen[key] != "" {
		return
	}
	p.seen[key] = "written"
	if p.lines > 0 {
		fmt.Fprintf(p.env.stderr, "\x1b[%dA\r\x1b[J", p.lines)
		p.lines = 0
	}
	for _, l := range lines {
		p.env.message("%s", l)
	}
}

// phaseLine is one line about a phase, for example "drain completed after 12s".
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

// draw draws the block over the previous one.
func (p *progress) draw(op lifecycle.Operation, note string) {
	now := p.env.clock.now()
	title := fmt.Sprintf("%s %s  %s  %s", op.Action, p.request.target.name(), op.Status, elapsed(op.StartedAt, op.EndedAt, now))
	lines := []string{p.paint(bold, p.cut(title, 0))}
	titles := 0
	for _, phase := range op.Phases {
		titles = max(titles, utf8.RuneCountInString(phase.Title))
	}
	for _, phase := range op.Phases {
		lines = append(lines, p.phase(phase, titles, now))
	}
	if note != "" {
		lines = append(lines, p.paint(dim, "  "+p.cut(note, 2)))
	}
	var b strings.Builder
	if p.lines > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", p.lines)
	}
	for _, l := range lines {
		b.WriteString("\r\x1b[2K" + l + "\n")
	}
	if p.lines > len(lines) {
		b.WriteString("\x1b[J") // the rest of an earlier, longer drawing
	}
	io.WriteString(p.env.stderr, b.String()) //nolint:errcheck // there is no other place for messages
	p.lines = len(lines)
	p.frame++
}

// elapsed is how long something took, or takes so far; empty before its start.
func elapsed(from, to *time.Time, now time.Time) string {
	switch {
	case from == nil:
		return ""
	case to == nil:
		return lifecycle.Span(now.Sub(*from))
	}
	return took(to.Sub(*from))
}

// phase is one phase's line; titles is the width of the titles' column.
func (p *progress) phase(phase lifecycle.Phase, titles int, now time.Time) string {
	mark, style := p.mark(phase.State)
	text := fmt.Sprintf("%-*s %7s", titles, phase.Title, elapsed(phase.StartedAt, phase.EndedAt, now))
	if phase.Attempt > 1 {
		text += fmt.Sprintf("  attempt %d", phase.Attempt)
	}
	if phase.Reason != "" {
		text += "  " + phase.Reason
	}
	return "  " + p.paint(style, mark) + " " + p.cut(strings.TrimRight(text, " "), 4)
}

// spinner is one frame of the running mark for each redraw.
const spinner = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"

func (p *progress) mark(s lifecycle.PhaseState) (mark string, style int) {
	switch s {
	case lifecycle.PhaseRunning:
		frames := []rune(spinner)
		return string(frames[p.frame%len(frames)]), cyan
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

func (p *progress) paint(style int, s string) string {
	if p.env.noColor {
		return s
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", style, s)
}

// cut cleans a text and keeps it on one line of the terminal: a wrapped line
// would break the redraw in place.
func (p *progress) cut(s string, indent int) string {
	s = strings.ReplaceAll(clean(s), "\n", " ")
	width := p.env.tty.width()
	if width <= 0 {
		width = 80
	}
	width -= indent + 1
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	return string([]rune(s)[:max(width-1, 0)]) + "…"
}
