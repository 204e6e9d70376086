package dev

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/deploy/dev/internal/statefile"
)

// runFile identifies the process of a part, so that a later command stops
// exactly that process.
type runFile struct {
	Part string `json:"part"`
	identity
	Program string `json:"program"` // the executable, for information
}

// agentPrefix starts the part name of an agent.
const agentPrefix = "agent/"

// runFiles is the folder with one run file per started part.
type runFiles struct{ dir string }

func (l layout) processes() runFiles { return runFiles{filepath.Join(l.dir, "run")} }

func (l layout) logPath(part string) string {
	return filepath.Join(l.logDir(), strings.ReplaceAll(part, "/", "-")+".log")
}

func (f runFiles) path(part string) string {
	return filepath.Join(f.dir, strings.ReplaceAll(part, "/", "-")+".json")
}

// running returns the process of a part; ok is false if it does not run.
func (f runFiles) running(part string) (id identity, ok bool) {
	var r runFile
	found, err := statefile.ReadJSON(f.path(part), &r)
	if err != nil || !found || r.Part != part {
		return identity{}, false
	}
	return r.identity, r.alive()
}

func (f runFiles) save(r runFile) error {
	if err := statefile.WriteJSON(f.path(r.Part), r); err != nil {
		return fmt.Errorf("storing the process of %s: %w", r.Part, err)
	}
	return nil
}

func (f runFiles) remove(part string) error {
	if err := os.Remove(f.path(part)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// all lists the parts that have a run file, in stop order. An invalid file is an
// error, because it may identify a running process.
func (f runFiles) all() ([]runFile, error) {
	files, err := filepath.Glob(filepath.Join(f.dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var runs []runFile
	for _, file := range files {
		var r runFile
		if _, err := statefile.ReadJSON(file, &r); err != nil {
			return nil, fmt.Errorf("%w (remove the file if no such process runs)", err)
		}
		runs = append(runs, r)
	}
	slices.SortStableFunc(runs, func(a, b runFile) int { return stopRank(a.Part) - stopRank(b.Part) })
	return runs, nil
}

// stopRank sorts parts in stop order, the reverse of the start order.
func stopRank(part string) int {
	order := []string{partAPI, partWorker, partTemporal, partVault, partPostgres}
	if strings.HasPrefix(part, agentPrefix) {
		return -1
	}
	return slices.Index(order, part)
}
