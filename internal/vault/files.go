package vault

import (
	"errors"
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

// writeCredential replaces a file atomically and durably, with mode 0600.
func writeCredential(file, content string) error {
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*") // mode 0600
	if err != nil {
		return schema.Wrap(schema.KindInternal, err, "writing Vault credentials")
	}
	_, err = f.WriteString(content + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err == nil {
		err = syncDir(filepath.Dir(file))
	} else {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	if err != nil {
		return schema.Wrap(schema.KindInternal, err, "writing Vault credentials to %s", file)
	}
	return nil
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
