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

// files are the files of machines: consoles, boot data until QEMU has read it, disks, and locks.
type files struct {
	state, image string
	ipxe         string // if machines boot over HTTP
	user         int    // of QEMU, if not 0
}

// The folders below the state folder.
const (
	consoleDir = "consoles"
	bootDir    = "boot"
	diskDir    = "disks"
	lockDir    = "locks"
)

func (f files) kernel() string           { return filepath.Join(f.image, KernelFile) }
func (f files) initramfs() string        { return filepath.Join(f.image, InitramfsFile) }
func (f files) console(id string) string { return filepath.Join(f.state, consoleDir, id+".log") }
func (f files) boot(id string) string    { return filepath.Join(f.state, bootDir, id+".json") }
func (f files) disk(id string) string    { return filepath.Join(f.state, diskDir, id+".img") }

// open opens the state folder. QEMU's user may own what is in it, so files are used only through
// it: a link cannot lead out of it.
func (f files) open() (*os.Root, error) { return os.OpenRoot(f.state) }

// prepare creates the folders.
func (f files) prepare() error {
	if err := os.MkdirAll(f.state, 0o700); err != nil {
		return unusable(err)
	}
	root, err := f.open()
	if err != nil {
		return unusable(err)
	}
	defer root.Close() //nolint:errcheck // nothing is buffered
	for _, dir := range []string{".", consoleDir, bootDir, diskDir, lockDir} {
		err := root.Mkdir(dir, 0o700)
		if errors.Is(err, fs.ErrExist) {
			err = nil
		}
		if err == nil && dir != lockDir && f.user != 0 {
			err = root.Lchown(dir, f.user, -1)
		}
		if err != nil {
			return unusable(err)
		}
	}
	return nil
}

func unusable(err error) error {
	return machine.Wrap(machine.ReasonUnavailable, err, "the libvirt provider cannot use its state folder: %v", err)
}

// checkImage reports the image's first file that does not exist.
func (f files) checkImage() error {
	const build = "build it with ./task vm-image"
	needed := [][2]string{{f.kernel(), build}, {f.initramfs(), build}}
	if f.ipxe != "" {
		needed = append(needed, [2]string{f.ipxe, "install Debian's package ipxe, or set GPUAAS_LIBVIRT_IPXE"})
	}
	for _, n := range needed {
		if info, err := os.Stat(n[0]); err != nil || !info.Mode().IsRegular() {
			return machine.Wrap(machine.ReasonImage, err, "the file %s does not exist; %s", n[0], n[1])
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
	path = f.boot(s.InstanceID)
	return path, f.replace(path, func(file *os.File) error {
		_, err := file.Write(text)
		return err
	})
}

// diskSize is the size of a machine's disk, which must exceed the free space that the agent's probe
// asks for (256 MiB). The file takes only the space that the machine has written.
const diskSize = 512 << 20

// newDisk creates the machine's empty disk. The caller has the lock, and no domain uses an older disk.
func (f files) newDisk(id string) error {
	return f.replace(f.disk(id), func(file *os.File) error { return file.Truncate(diskSize) })
}

// replace removes the file of a machine, and creates it for QEMU's user.
func (f files) replace(path string, fill func(*os.File) error) error {
	if err := remove(path); err != nil {
		return err
	}
	root, err := f.open()
	if err != nil {
		return unusable(err)
	}
	defer root.Close() //nolint:errcheck // nothing is buffered
	name, err := filepath.Rel(f.state, path)
	if err != nil {
		return unusable(err)
	}
	file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return unusable(err)
	}
	err = fill(file)
	if f.user != 0 {
		err = errors.Join(err, file.Chown(f.user, -1))
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return unusable(err)
	}
	return nil
}

func (f files) removeBoot(id string) error { return remove(f.boot(id)) }

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
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
	for _, path := range append(paths, f.disk(id), f.boot(id)) {
		if err := remove(path); err != nil {
			return err
		}
	}
	return nil
}

// consoleTail returns the end of a machine's console, which must be a file: QEMU's user could
// replace it by something that blocks.
func (f files) consoleTail(id string) ([]byte, error) {
	root, err := f.open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, unusable(err)
	}
	defer root.Close() //nolint:errcheck // nothing is buffered
	file, err := root.OpenFile(filepath.Join(consoleDir, id+".log"), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, unusable(err)
	}
	defer file.Close() //nolint:errcheck // only read
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("the console is not a file")
	}
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
	root, err := f.open()
	if err != nil {
		return nil, unusable(err)
	}
	defer root.Close()                                                                               //nolint:errcheck // nothing is buffered
	file, err := root.OpenFile(filepath.Join(lockDir, id[len(id)-2:]), os.O_RDWR|os.O_CREATE, 0o600) // an ID begins with its time
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
