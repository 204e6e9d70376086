package libvirt

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/machine"
)

// files are the files of machines: consoles, boot data until QEMU has read it, and locks.
type files struct {
	state, image string
	user         int // of QEMU, if not 0
}

// The folders below the state folder.
const (
	consoleDir = "consoles"
	bootDir    = "boot"
	lockDir    = "locks"
)

func (f files) kernel() string           { return filepath.Join(f.image, KernelFile) }
func (f files) initramfs() string        { return filepath.Join(f.image, InitramfsFile) }
func (f files) console(id string) string { return filepath.Join(f.state, consoleDir, id+".log") }
func (f files) boot(id string) string    { return filepath.Join(f.state, bootDir, id+".json") }

// prepare creates the folders.
func (f files) prepare() error {
	for _, dir := range []string{f.state, filepath.Join(f.state, consoleDir), filepath.Join(f.state, bootDir), filepath.Join(f.state, lockDir)} {
		err := os.MkdirAll(dir, 0o700)
		if err == nil && dir != filepath.Join(f.state, lockDir) {
			err = f.give(dir)
		}
		if err != nil {
			return unusable(err)
		}
	}
	return nil
}

// give makes QEMU's user the owner of a file.
func (f files) give(path string) error {
	if f.user == 0 {
		return nil
	}
	return os.Chown(path, f.user, -1)
}

func unusable(err error) error {
	return machine.Wrap(machine.ReasonUnavailable, err, "the libvirt provider cannot use its state folder: %v", err)
}

// checkImage reports the image's first file that does not exist.
func (f files) checkImage() error {
	for _, path := range []string{f.kernel(), f.initramfs()} {
		if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
			return machine.Wrap(machine.ReasonImage, err, "the file %s does not exist; build it with ./task vm-image", path)
		}
	}
	return nil
}

// writeBoot writes the boot data and returns the file. The caller has the lock.
func (f files) writeBoot(s machine.Spec, b activities.Boot, settings Settings) (path string, err error) {
	text, err := json.Marshal(machine.BootDocument{
		BaseURL: b.BaseURL, CABundlePEM: b.CABundlePEM, Reference: b.Reference, Host: s.Host, Hosts: settings.Hosts,
	})
	if err != nil {
		return "", machine.Wrap(machine.ReasonRejected, err, "encoding the boot data of instance %s", s.InstanceID)
	}
	if err := f.removeBoot(s.InstanceID); err != nil {
		return "", err
	}
	file, err := os.OpenFile(f.boot(s.InstanceID), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", unusable(err)
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Close(), f.give(file.Name())); err != nil {
		return "", unusable(err)
	}
	return file.Name(), nil
}

func (f files) removeBoot(id string) error {
	if err := os.Remove(f.boot(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return unusable(err)
	}
	return nil
}

// remove removes all files of a machine. virtlogd appends a number to the names of full consoles.
func (f files) remove(id string) error {
	paths, err := filepath.Glob(f.console(id) + "*")
	if err != nil {
		return unusable(err)
	}
	for _, path := range paths {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return unusable(err)
		}
	}
	return f.removeBoot(id)
}

// consoleTail returns the end of a machine's console.
func (f files) consoleTail(id string) ([]byte, error) {
	file, err := os.Open(f.console(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, unusable(err)
	}
	defer file.Close() //nolint:errcheck // only read
	info, err := file.Stat()
	if err == nil {
		_, err = file.Seek(max(0, info.Size()-machine.MaxConsole), io.SeekStart)
	}
	if err != nil {
		return nil, unusable(err)
	}
	tail, err := io.ReadAll(io.LimitReader(file, machine.MaxConsole))
	if err != nil {
		return nil, unusable(err)
	}
	return tail, nil
}

// lock locks out other changes of the instance's machine, by all workers of this host, and some
// of other machines. It waits until ctx ends. The locks end with the process.
func (f files) lock(ctx context.Context, id string) (unlock func(), err error) {
	if err := f.prepare(); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(f.state, lockDir, id[:1]), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, unusable(err)
	}
	locked := make(chan error)
	go func() {
		err := flock(file)
		select {
		case locked <- err:
		case <-ctx.Done():
			_ = file.Close()
		}
	}()
	select {
	case err = <-locked:
	case <-ctx.Done():
		return nil, machine.Wrap(machine.ReasonUnavailable, ctx.Err(), "another change of machines did not end in time")
	}
	if err != nil {
		_ = file.Close()
		return nil, unusable(err)
	}
	return func() { _ = file.Close() }, nil
}

func flock(file *os.File) error {
	for {
		if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
