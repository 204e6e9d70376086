package main

import (
	"fmt"
	"html"
	"strings"
)

// The form of the terminal, in pixels.
const (
	rows       = 26
	lineHeight = 18
	charWidth  = 7.83 // of the font at 13 px
	padding    = 16
	columns    = 120
)

// Times of the animation in seconds: the longest pause that is shown as it was, and how long the end stays.
const (
	longestPause = 1.2
	hold         = 6
)

// render returns the image. All lines are in it from the beginning, below the visible part, and a single
// animation moves them up by one line at a time.
func render(lines []line) string {
	width, height := columns*charWidth+2*padding, rows*lineHeight+2*padding
	at := times(lines)
	total := hold
	if len(at) > 0 {
		total += int(at[len(at)-1]) + 1
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" role="img" aria-label="A terminal: gpuaas drains a node">`+"\n", width, height)
	fmt.Fprintf(&b, "<style>\n.s{animation:s %ds step-end infinite}\n@keyframes s{\n", total)
	for i, t := range at {
		fmt.Fprintf(&b, "%.2f%%{transform:translateY(%dpx)}\n", 100*t/float64(total), -(i+1)*lineHeight)
	}
	fmt.Fprintf(&b, "100%%{transform:translateY(%dpx)}}\n", -len(lines)*lineHeight)
	fmt.Fprintf(&b, "@media (prefers-reduced-motion: reduce){.s{animation:none;transform:translateY(%dpx)}}\n", -len(lines)*lineHeight)
	b.WriteString("text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d0d7de;white-space:pre}.p{fill:#7ee787;font-weight:600}.h{fill:#79c0ff}\n</style>\n")
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" rx="8" fill="#0d1117"/>`+"\n"+`<svg x="%d" y="%d" width="%.0f" height="%d"><g class="s">`+"\n", padding, padding, columns*charWidth, rows*lineHeight)
	for i, l := range lines {
		if l.text != "" {
			fmt.Fprintf(&b, `<text y="%d"%s xml:space="preserve">%s</text>`+"\n", (rows+i)*lineHeight+13, class(l.text), html.EscapeString(l.text))
		}
	}
	b.WriteString("</g></svg>\n</svg>\n")
	return b.String()
}

// times returns when each line appears, with shortened pauses.
func times(lines []line) []float64 {
	at := make([]float64, len(lines))
	for i := 1; i < len(lines); i++ {
		at[i] = at[i-1] + min(lines[i].at-lines[i-1].at, longestPause)
	}
	return at
}

// class is the style of commands and of headings.
func class(text string) string {
	switch {
	case strings.HasPrefix(text, "$ "):
		return ` class="p"`
	case strings.HasPrefix(text, "== "):
		return ` class="h"`
	}
	return ""
}
