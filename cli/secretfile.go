package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
)

// secretFile is a file that will contain a secret: only its owner can read it, and it
// is replaced in one step. Open it before the secret is requested, so that no secret
// is created that cannot be stored. A nil *secretFile stores nothing.
type secretFile struct {
	path string
	temp *os.File
}

// newSecretFile opens the file; the path "" is no file.
func newSecretFile(path string) (*secretFile, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		if named, ok := errors.AsType[*fs.PathError](err); ok {
			err = named.Err // it names the temporary file
		}
		return nil, schema.Wrap(schema.KindInvalidRequest, err, "creating %s", path).WithNext("name a file in a directory that exists and that you may write")
	}
	return &secretFile{path: path, temp: f}, nil
}

// write replaces the file by text.
func (s *secretFile) write(text string) error {
	if s == nil {
		return nil
	}
	_, err := s.temp.WriteString(text)
	if err = errors.Join(err, s.temp.Sync(), s.temp.Close()); err == nil {
		err = os.Rename(s.temp.Name(), s.path)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", s.path, err)
	}
	return nil
}

// discard removes the file unless it was written. It may follow write.
func (s *secretFile) discard() {
	if s != nil {
		s.temp.Close()           //nolint:errcheck // closed already after write
		os.Remove(s.temp.Name()) //nolint:errcheck // gone already after write
	}
}

// writeJSON replaces the file by v as JSON.
func (s *secretFile) writeJSON(v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("rendering the bundle: %w", err)
	}
	return s.write(string(text) + "\n")
}

// fileOf returns the path of a node's file in a directory. A host name that is not
// a plain file name is rejected; flag is how to give a path instead.
func fileOf(t target, dir, suffix, flag string) (string, error) {
	name := t.name() + suffix
	if strings.ContainsAny(name, `/\`) || strings.HasPrefix(name, ".") {
		return "", usagef("gpuaas node", "the host name %q is not a valid file name: use %s", t.name(), flag)
	}
	return filepath.Join(dir, name), nil
}
