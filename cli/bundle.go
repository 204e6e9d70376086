package cli

import (
	"encoding/json"
	"errors"
	"fmt"
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

// secretFile is a file that will hold a secret: readable by its owner only, and
// at any moment either all of it or what it was before. It is opened before the
// secret is asked for, so that none is made that cannot be kept.
type secretFile struct {
	path string
	temp *os.File
}

func newSecretFile(path string) (*secretFile, error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return nil, fmt.Errorf("making %s: %w", path, err)
	}
	return &secretFile{path: path, temp: f}, nil
}

// newEnvFile is newSecretFile for a file that may not be wanted: path "" is none.
func newEnvFile(path string) (*secretFile, error) {
	if path == "" {
		return nil, nil
	}
	return newSecretFile(path)
}

// write puts v into the file as JSON.
func (s *secretFile) write(v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("rendering %s: %w", s.path, err)
	}
	return s.writeText(string(text) + "\n")
}

// writeText puts text into the file.
func (s *secretFile) writeText(text string) error {
	if _, err := s.temp.WriteString(text); err != nil {
		return fmt.Errorf("writing %s: %w", s.path, err)
	}
	if err := errors.Join(s.temp.Sync(), s.temp.Close()); err != nil {
		return fmt.Errorf("writing %s: %w", s.path, err)
	}
	if err := os.Rename(s.temp.Name(), s.path); err != nil {
		return fmt.Errorf("writing %s: %w", s.path, err)
	}
	return nil
}

// discard removes what was not written to its end. It may follow write. Of none
// there is nothing to remove.
func (s *secretFile) discard() {
	if s == nil {
		return
	}
	s.temp.Close()           //nolint:errcheck // closed already after write
	os.Remove(s.temp.Name()) //nolint:errcheck // gone already after write
}
