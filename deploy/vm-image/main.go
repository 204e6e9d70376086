// Command vm-image builds the image of a virtual machine: the kernel of a Debian package, and an
// initramfs with our first process (package init below it), the node agent, the empty file system of
// the machine's disk, and the kernel modules of the virtual devices. The same inputs give the same bytes.
package main

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// modules are the kernel modules of the image in the order in which they are loaded.
func modules() []string {
	return []string{"virtio_ring.ko", "virtio.ko", "virtio_pci_modern_dev.ko", "virtio_pci_legacy_dev.ko", "virtio_pci.ko",
		"failover.ko", "net_failover.ko", "virtio_net.ko", "virtio_blk.ko", "qemu_fw_cfg.ko"}
}

func main() {
	pkg := flag.String("kernel-package", "", "Debian `package` of a kernel (linux-image-…-cloud-amd64)")
	agent := flag.String("agent", "", "static node agent `binary`")
	first := flag.String("init", "", "static `binary` of the first process")
	fs := flag.String("state", "", "`file` with the empty file system of the machine's disk")
	workload := flag.Bool("workload", false, "add a workload that reports its start and its end on the console; the agent must be gpuaas-dev-agent")
	out := flag.String("o", "", "output `folder`")
	flag.Parse()
	lines, err := build(context.Background(), image{pkg: *pkg, agent: *agent, first: *first, state: *fs, workload: *workload}, *out)
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm-image:", err)
		os.Exit(1) //nolint:forbidigo // in a main package
	}
	fmt.Fprint(os.Stdout, lines)
}

// image is what an image is made of: files by path, and whether it has a workload.
type image struct {
	pkg, agent, first, state string
	workload                 bool
}

// build writes both files and returns a line with the digest of each.
func build(ctx context.Context, i image, out string) (lines string, err error) {
	kernel, modules, err := unpack(ctx, i.pkg)
	if err != nil {
		return "", err
	}
	initramfs, err := newInitramfs(i, modules)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(out, 0o755); err != nil { //nolint:gosec // the image is public
		return "", err
	}
	for _, f := range []struct {
		name string
		data []byte
	}{{"vmlinuz", kernel}, {"initramfs.cpio", initramfs}} {
		path := filepath.Join(out, f.name)
		if err := replace(path, f.data); err != nil {
			return "", err
		}
		sum := sha256.Sum256(f.data)
		lines += fmt.Sprintf("%s sha256:%s\n", path, hex.EncodeToString(sum[:]))
	}
	return lines, nil
}

// replace writes a file atomically: a machine may be starting from the old one.
func replace(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) //nolint:errcheck // fails after the rename
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Chmod(0o644), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

// unpack returns the kernel and the modules of a package, by file name.
func unpack(ctx context.Context, pkg string) (kernel []byte, found map[string][]byte, err error) {
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", pkg)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	kernel, found, err = read(stdout)
	_, copyErr := io.Copy(io.Discard, stdout)
	if err := errors.Join(err, copyErr, cmd.Wait()); err != nil {
		return nil, nil, fmt.Errorf("unpacking %s: %w", pkg, err)
	}
	if kernel == nil {
		return nil, nil, fmt.Errorf("%s contains no kernel", pkg)
	}
	return kernel, found, nil
}

// read reads the kernel and the modules from the files of a package.
func read(r io.Reader) (kernel []byte, found map[string][]byte, err error) {
	wanted := map[string]bool{}
	for _, m := range modules() {
		wanted[m] = true
	}
	found = map[string][]byte{}
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return kernel, found, nil
		}
		if err != nil {
			return nil, nil, err
		}
		name := path.Base(h.Name)
		isKernel := strings.HasPrefix(name, "vmlinuz-")
		if !isKernel && !wanted[name] {
			continue
		}
		data, err := io.ReadAll(archive)
		if err != nil {
			return nil, nil, err
		}
		if isKernel {
			kernel = data
		} else {
			found[name] = data
		}
	}
}
