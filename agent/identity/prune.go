package identity

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// prune removes dropped versions, those older than all kept ones, and folders that
// a crash left half written. A newer folder that cannot be read stays: it may belong
// to another node, or an operator may repair it.
func (s versionStore) prune(kept, gone []*Version) error {
	entries, err := s.disk.System().ReadDir(s.dir)
	if err != nil {
		return err
	}
	oldest := 0
	for _, v := range kept {
		if oldest == 0 || v.Number < oldest {
			oldest = v.Number
		}
	}
	for _, e := range entries {
		name, torn := strings.CutSuffix(e.Name(), unborn)
		n, err := strconv.Atoi(name)
		over := torn || n < oldest || slices.ContainsFunc(gone, func(v *Version) bool { return v.Number == n })
		if !e.IsDir() || err != nil || !over {
			continue
		}
		if err := s.drop(filepath.Join(s.dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// drop wipes a folder's files and removes it, the key first.
func (s versionStore) drop(dir string) error {
	for _, name := range []string{keyFile, metaFile, certFile, chainFile} {
		if err := s.disk.System().Wipe(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := s.disk.System().Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// wipe removes every version and both copies, also damaged ones.
func (s versionStore) wipe() error {
	entries, err := s.disk.System().ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	faults := []error{err, s.disk.System().Wipe(s.keyPath), s.disk.System().Wipe(s.certPath)}
	for _, e := range entries {
		if e.IsDir() {
			faults = append(faults, s.drop(filepath.Join(s.dir, e.Name())))
		} else {
			faults = append(faults, s.disk.System().Wipe(filepath.Join(s.dir, e.Name())))
		}
	}
	return errors.Join(faults...)
}
