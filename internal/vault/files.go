package vault

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/gpuaas/gpuaas/schema"
)

// readIfExists returns a file's content without surrounding white space, or "" if
// the file does not exist.
func readIfExists(file string) (string, error) {
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(raw)), err
}

// writeFile replaces a file atomically and durably, with mode 0600.
func writeFile(file, content string) error {
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*") // mode 0600
	if err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	_, err = f.WriteString(content + "\n")
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", file, errors.Join(err, os.Remove(f.Name())))
	}
	return syncDir(filepath.Dir(file))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// lockDir creates a directory and locks it until unlock, so that concurrent setups
// do not overwrite each other's credentials.
func lockDir(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, ".setup.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// writeCredential gives a file the content and mode 0600. It does not replace a
// file that already has the content.
func writeCredential(file, content string) error {
	held, err := readIfExists(file)
	switch {
	case err != nil:
	case held != content:
		err = writeFile(file, content)
	default:
		err = os.Chmod(file, 0o600)
	}
	if err != nil {
		return schema.Wrap(schema.KindInternal, err, "writing Vault credentials")
	}
	return nil
}
