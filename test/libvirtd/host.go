// Package libvirtd runs a libvirt daemon of its own for a demo or the tests of a process. The daemon
// is a session daemon: it needs no file outside its folder, and none of its domains outlives it.
package libvirtd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Programs are what a host needs.
func Programs() []string { return []string{"libvirtd", "virsh", "qemu-system-x86_64"} }

// Host is a running daemon.
type Host struct {
	// URI is the connection, and Env the environment of virsh.
	URI string
	Env []string
	// UID is the user of the daemon and of QEMU: this process's, or an unprivileged one if that
	// is root, because root's daemon would be the system's.
	UID    int
	folder string
	daemon *exec.Cmd
	exited chan struct{}
}

// NewFolder returns a new folder that the daemon and QEMU can write, removed with the daemon.
func (h *Host) NewFolder() (string, error) {
	dir, err := os.MkdirTemp(h.folder, "state-")
	if err == nil {
		err = os.Chown(dir, h.UID, -1)
	}
	return dir, err
}

// unprivileged is the ID of a user and a group without rights, on every Linux.
const unprivileged = 65534

// Start starts a daemon and waits until it answers. The caller closes it.
func Start() (*Host, error) {
	folder, err := os.MkdirTemp("", "lv") // short: the path of a socket is limited
	if err != nil {
		return nil, err
	}
	h := &Host{UID: os.Getuid(), folder: folder, exited: make(chan struct{})}
	var as *syscall.Credential
	if h.UID == 0 {
		as = &syscall.Credential{Uid: unprivileged, Gid: unprivileged}
		h.UID = unprivileged
	}
	if err := h.configure(); err != nil {
		return nil, err
	}
	h.URI = "qemu:///session?socket=" + h.path("run", "libvirt-sock")
	h.daemon = exec.CommandContext(context.Background(), "libvirtd", "-f", h.path("cfg", "libvirt", "libvirtd.conf"), "-p", h.path("libvirtd.pid"))
	h.daemon.Env, h.daemon.Dir = h.Env, folder
	h.daemon.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	dieWithParent(h.daemon.SysProcAttr)
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the parent death signal is tied to the forking thread
		err := h.daemon.Start()
		started <- err
		if err == nil {
			_ = h.daemon.Wait()
			close(h.exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	if err := h.ready(); err != nil {
		return nil, err
	}
	return h, nil
}

func (h *Host) path(names ...string) string {
	return filepath.Join(append([]string{h.folder}, names...)...)
}

// configure writes the daemon's files.
func (h *Host) configure() error {
	h.Env = append(os.Environ(), "LC_ALL=C", "HOME="+h.folder, "XDG_RUNTIME_DIR="+h.path("run"), "XDG_CONFIG_HOME="+h.path("cfg"),
		"XDG_CACHE_HOME="+h.path("cache"), "XDG_DATA_HOME="+h.path("data"))
	for _, dir := range []string{"run", "cfg", "cfg/libvirt", "cache", "data"} {
		if err := os.MkdirAll(h.path(dir), 0o700); err != nil {
			return err
		}
	}
	conf := fmt.Sprintf("unix_sock_dir = %q\nauth_unix_rw = \"none\"\nlog_outputs = \"3:file:%s\"\n", h.path("run"), h.path("libvirtd.log"))
	err := errors.Join(os.WriteFile(h.path("cfg", "libvirt", "libvirtd.conf"), []byte(conf), 0o600),
		os.WriteFile(h.path("cfg", "libvirt", "qemu.conf"), []byte("stdio_handler = \"file\"\n"), 0o600))
	if err != nil {
		return err
	}
	return filepath.Walk(h.folder, func(path string, _ os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		return os.Chown(path, h.UID, -1)
	})
}

// startTimeout bounds the daemon's first start, in which it probes QEMU.
const startTimeout = 60 * time.Second

func (h *Host) ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := h.Run(ctx, "list"); err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-h.exited:
			return fmt.Errorf("libvirtd exited: %s", h.log())
		case <-ctx.Done():
			h.Close()
			return fmt.Errorf("libvirtd does not respond: %s", h.log())
		}
	}
}

func (h *Host) log() string {
	text, err := os.ReadFile(h.path("libvirtd.log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Settings returns the environment of a worker that creates machines with the daemon and the
// image, whose folder, like that of its state, is new. imageDir has the files of the image.
func (h *Host) Settings(imageDir string, files ...string) (env []string, state string, err error) {
	if state, err = h.NewFolder(); err != nil {
		return nil, "", err
	}
	for _, file := range files {
		data, err := os.ReadFile(filepath.Join(imageDir, file))
		if err == nil {
			err = os.WriteFile(filepath.Join(state, file), data, 0o600)
		}
		if err == nil {
			err = os.Chown(filepath.Join(state, file), h.UID, -1)
		}
		if err != nil {
			return nil, "", err
		}
	}
	env = []string{"POWERNODE_LIBVIRT_MODE=real", "POWERNODE_IMAGE_BASE=" + state, "GPUAAS_LIBVIRT_URI=" + h.URI, "GPUAAS_LIBVIRT_STATE_DIR=" + state}
	if h.UID != os.Getuid() {
		env = append(env, fmt.Sprintf("GPUAAS_LIBVIRT_QEMU_UID=%d", h.UID))
	}
	return env, state, nil
}

// Run runs a virsh command without a provider and returns its output.
func (h *Host) Run(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "virsh", append([]string{"-q", "-c", h.URI}, args...)...)
	cmd.Env = h.Env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Close destroys the domains, stops the daemon and removes its folder.
func (h *Host) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	names, _ := h.Run(ctx, "list", "--name")
	for name := range strings.FieldsSeq(names) {
		_, _ = h.Run(ctx, "destroy", name)
	}
	_ = h.daemon.Process.Signal(syscall.SIGTERM)
	select {
	case <-h.exited:
	case <-ctx.Done():
		_ = h.daemon.Process.Kill()
		<-h.exited
	}
	_ = os.RemoveAll(h.folder)
}
