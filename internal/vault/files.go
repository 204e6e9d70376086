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

// writeCredential durably replaces a file, with mode 0600. The caller has locked the
// directory.
func writeCredential(file, content string) error {
	temp := file + ".new"
	err := os.Remove(temp) // a crash may have left one, with any mode
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = createCredential(temp, content)
	}
	if err == nil {
		err = os.Rename(temp, file)
	}
	if err == nil {
		err = syncDir(filepath.Dir(file))
	}
	if err != nil {
		return schema.Wrap(schema.KindInternal, err, "writing Vault credentials")
	}
	return nil
}

func createCredential(file, content string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content + "\n")
	return errors.Join(err, f.Sync(), f.Close())
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
