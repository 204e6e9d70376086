// Command castsvg renders a recording of asciinema (version 2) as an animated SVG image, which needs no
// script. With reduced motion, the image shows the end of the recording.
//
//	castsvg FILE.cast FILE.svg
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
)

// The image shows the part of the demo from the first of these headings to the second.
const (
	castFrom = "== retire a busy node"
	castTo   = "== retire"
)

func main() {
	flag.Parse()
	if err := run(flag.Arg(0), flag.Arg(1), castFrom, castTo); err != nil {
		fmt.Fprintln(os.Stderr, "castsvg:", err)
		os.Exit(1)
	}
}

func run(cast, svg, from, to string) error {
	raw, err := os.ReadFile(cast)
	if err != nil {
		return err
	}
	lines, err := read(string(raw))
	if err != nil {
		return fmt.Errorf("%s: %w", cast, err)
	}
	return os.WriteFile(svg, []byte(render(part(lines, from, to))), 0o644) //nolint:gosec // an image of the documentation
}

// line is a line of output with the time at which it was written, in seconds.
type line struct {
	at   float64
	text string
}

// read returns the lines of a recording, wrapped as its terminal would.
func read(text string) (lines []line, err error) {
	scan := bufio.NewScanner(strings.NewReader(text))
	scan.Buffer(nil, 1<<20)
	var header struct{ Version, Width int }
	if !scan.Scan() || json.Unmarshal(scan.Bytes(), &header) != nil || header.Version != 2 || header.Width < 1 {
		return nil, fmt.Errorf("not a recording of version 2")
	}
	rest := ""
	for scan.Scan() {
		var event [3]any
		if err := json.Unmarshal(scan.Bytes(), &event); err != nil {
			return nil, err
		}
		at, timed := event[0].(float64)
		output, ok := event[2].(string)
		if !timed || !ok || event[1] != "o" {
			continue
		}
		written := strings.Split(rest+strings.ReplaceAll(output, "\r", ""), "\n")
		rest = written[len(written)-1]
		for _, text := range written[:len(written)-1] {
			lines = append(lines, wrap(at, text, header.Width)...)
		}
	}
	return lines, scan.Err()
}

// wrap breaks a line after each width characters.
func wrap(at float64, text string, width int) (lines []line) {
	runes := []rune(text)
	for len(runes) > width {
		lines = append(lines, line{at, string(runes[:width])})
		runes = runes[width:]
	}
	return append(lines, line{at, string(runes)})
}

// part returns the lines from the first that contains from to the last before one that contains to.
func part(lines []line, from, to string) []line {
	start, end := 0, len(lines)
	for i, l := range lines {
		if from != "" && strings.Contains(l.text, from) {
			start, from = i, ""
		} else if from == "" && to != "" && strings.Contains(l.text, to) {
			end = i
			break
		}
	}
	return lines[start:end]
}
