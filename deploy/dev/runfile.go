package dev

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// runFile is what is remembered of a part's process, so that a later command
// stops exactly that one.
type runFile struct {
	Part string `json:"part"`
	identity
	// Program is the executable, for people.
	Program string `json:"program"`
}

// agentPrefix starts the name of an agent's part.
const agentPrefix = "agent/"

func (l layout) runPath(part string) string {
	return filepath.Join(l.runDir(), strings.ReplaceAll(part, "/", "-")+".json")
}

func (l layout) logPath(part string) string {
	return filepath.Join(l.logDir(), strings.ReplaceAll(part, "/", "-")+".log")
}

// running answers the process of a part, false when it does not run (any more).
func (l layout) running(part string) (identity, bool) {
	var r runFile
	found, err := readJSON(l.runPath(part), &r)
	if err != nil || !found || r.Part != part {
		return identity{}, false
	}
	return r.identity, r.alive()
}

func (l layout) remember(r runFile) error {
	if err := writePrivateJSON(l.runPath(r.Part), r); err != nil {
		return fmt.Errorf("remembering the process of %s: %w", r.Part, err)
	}
	return nil
}

func (l layout) forget(part string) error {
	if err := os.Remove(l.runPath(part)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// started lists every part that has a run file, in the order in which they are
// to be stopped. A file that does not read is an error: it may name a process.
func (l layout) started() ([]runFile, error) {
	files, err := filepath.Glob(filepath.Join(l.runDir(), "*.json"))
	if err != nil {
		return nil, err
	}
	var runs []runFile
	for _, f := range files {
		var r runFile
		if _, err := readJSON(f, &r); err != nil {
			return nil, fmt.Errorf("%w (remove the file when no such process runs)", err)
		}
		runs = append(runs, r)
	}
	slices.SortStableFunc(runs, func(a, b runFile) int { return stopRank(a.Part) - stopRank(b.Part) })
	return runs, nil
}

// stopRank orders a stop: the reverse of the order of starting.
func stopRank(part string) int {
	order := []string{partAPI, partWorker, partTemporal, partVault, partPostgres}
	if strings.HasPrefix(part, agentPrefix) {
		return -1
	}
	return slices.Index(order, part)
}
