package cli

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// bundlePath is where a bundle goes. A host name that is no plain file name is
// not made into one.
func (e *env) bundlePath(t target, path string) (string, error) {
	if path != "" {
		return path, nil
	}
	name := t.name() + ".bundle.json"
	if strings.ContainsAny(name, `/\`) || strings.HasPrefix(name, ".") {
		return "", usagef("gpuaas node enroll", "the host name %q does not make a file name: give --bundle FILE", t.name())
	}
	return filepath.Join(e.dir, name), nil
}

// writeSecret writes v as JSON so that path holds all of it or what it held
// before, readable by its owner only.
func writeSecret(path string, v any) (err error) {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if _, err = f.Write(append(text, '\n')); err != nil {
		return errors.Join(err, f.Close())
	}
	if err = f.Sync(); err != nil {
		return errors.Join(err, f.Close())
	}
	if err = f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
