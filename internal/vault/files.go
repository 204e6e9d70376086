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

// writeCredential durably replaces a file of a locked directory, with mode 0600.
func writeCredential(dir *os.File, name, content string) error {
	file := filepath.Join(dir.Name(), name)
	temp := file + ".new"
	_ = os.Remove(temp) // a crash may have left one, with any mode; the next line fails if it stays
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		_, err = f.WriteString(content + "\n")
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err == nil {
		err = errors.Join(os.Rename(temp, file), dir.Sync())
	}
	if err != nil {
		return schema.Wrap(schema.KindInternal, err, "writing Vault credentials")
	}
	return nil
}

// lockDir creates a directory and locks it until the returned file is closed, so that
// concurrent setups do not overwrite each other's credentials.
func lockDir(path string) (*os.File, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}
