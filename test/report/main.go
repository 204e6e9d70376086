// Command report reads the events of test suites whose failed tests were repeated, as go test
// -json writes them. It names each test that passed only when it was repeated. It fails if a
// suite failed for another reason than its tests, because a repetition of a test does not run
// what did not run: the suite's servers did not start, or its process ended early.
//
// Usage: report FILE..., from any folder.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1) //nolint:forbidigo // in a main package
	}
}

func run(files []string, out io.Writer) error {
	suites := suites{}
	for _, name := range files {
		if err := suites.read(name); err != nil {
			return err
		}
	}
	if problems := suites.print(out); problems > 0 {
		return fmt.Errorf("tests did not run: %d problems", problems)
	}
	return nil
}

// event is a line of go test -json. Test is empty in an event of the package.
type event struct{ Action, Package, Test, Output string }

// suite is what the events of one package say, over all its runs.
type suite struct {
	// open are the tests that run now; failed says which of them failed in this run.
	open, failed map[string]bool
	// killed is the line of go test about a signal that ended this run.
	killed string
	// repeated are the tests that failed in a run, by whether they passed in a later one.
	repeated map[string]bool
	problems []string
}

// suites are the packages by import path.
type suites map[string]*suite

// read adds the events of a file.
func (s suites) read(name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	lines := json.NewDecoder(bytes.NewReader(text))
	for {
		var e event
		if err := lines.Decode(&e); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if s[e.Package] == nil {
			s[e.Package] = &suite{open: map[string]bool{}, failed: map[string]bool{}, repeated: map[string]bool{}}
		}
		s[e.Package].add(e)
	}
}

func (s *suite) add(e event) {
	switch {
	case e.Test == "" && e.Action == "output" && strings.HasPrefix(e.Output, "signal: "):
		s.killed = strings.TrimSpace(e.Output)
	case e.Test == "" && (e.Action == "pass" || e.Action == "fail" || e.Action == "skip"):
		s.end(e.Action == "fail")
	case e.Action == "run":
		s.open[e.Test] = true
	case e.Action == "pass" || e.Action == "skip":
		delete(s.open, e.Test)
		if _, failedBefore := s.repeated[e.Test]; failedBefore {
			s.repeated[e.Test] = true
		}
	case e.Action == "fail":
		delete(s.open, e.Test)
		s.failed[e.Test] = true
	}
}

// end ends a run of the package.
func (s *suite) end(failed bool) {
	switch {
	case s.killed != "":
		s.problems = append(s.problems, "its process ended: "+s.killed)
	case len(s.open) > 0:
		s.problems = append(s.problems, "its process ended during "+slices.Sorted(maps.Keys(s.open))[0])
	case failed && len(s.failed) == 0:
		s.problems = append(s.problems, "it failed, and none of its tests did")
	}
	for t := range s.failed {
		s.repeated[t] = false
	}
	clear(s.open)
	clear(s.failed)
	s.killed = ""
}

// print writes what the suites say and returns the number of problems.
func (s suites) print(w io.Writer) (problems int) {
	var repeated []string
	for _, path := range slices.Sorted(maps.Keys(s)) {
		for _, p := range s[path].problems {
			fmt.Fprintf(w, "%s: %s\n", path, p)
			problems++
		}
		for t, passed := range s[path].repeated {
			if passed && !strings.Contains(t, "/") {
				repeated = append(repeated, path+" "+t)
			}
		}
	}
	if len(repeated) > 0 {
		slices.Sort(repeated)
		fmt.Fprintf(w, "== tests that failed, and passed when they were repeated; find out why:\n  %s\n", strings.Join(repeated, "\n  "))
	}
	return problems
}
