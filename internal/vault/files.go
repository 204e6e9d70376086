package vault

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// readIfThere returns a file's content without the spaces around it, "" when
// there is no such file. A file that cannot be read is an error.
func readIfThere(file string) (string, error) {
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(raw)), err
}

// writeFile replaces a file, readable by its owner only. A reader, and a crash,
// see the old content or the new.
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

// lockDir makes a folder and takes it for one process until unlock, so that two
// setups do not both make credentials and overwrite each other's.
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

// keepFile makes a file hold the content, mode 0600. One that does is left as it
// is.
func keepFile(file, content string) error {
	held, err := readIfThere(file)
	if err != nil {
		return err
	}
	if held != content {
		return writeFile(file, content)
	}
	return os.Chmod(file, 0o600)
}
