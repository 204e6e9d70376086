package main

import (
	"archive/tar"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/testkit/need"
)

// kernelPackage writes a Debian package with the files and returns it.
func kernelPackage(t *testing.T, files ...string) string {
	t.Helper()
	need.Program(t, "dpkg-deb", "run: sh tools/need.sh host")
	root := t.TempDir()
	write(t, filepath.Join(root, "DEBIAN", "control"), "Package: linux-image-test\nVersion: 1\nArchitecture: amd64\nMaintainer: test <test@example.com>\nDescription: test\n")
	for _, f := range files {
		write(t, filepath.Join(root, f), "content of "+filepath.Base(f))
	}
	pkg := filepath.Join(t.TempDir(), "kernel.deb")
	out, err := exec.CommandContext(t.Context(), "dpkg-deb", "--root-owner-group", "-b", root, pkg).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return pkg
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

func kernelFiles() []string {
	files := []string{"boot/vmlinuz-6.1.0", "boot/config-6.1.0", "lib/modules/6.1.0/kernel/fs/other.ko"}
	for _, m := range modules() {
		files = append(files, "lib/modules/6.1.0/kernel/drivers/"+m)
	}
	return files
}

func TestBuildIsReproducible(t *testing.T) {
	t.Parallel()
	pkg, dir := kernelPackage(t, kernelFiles()...), t.TempDir()
	agent, first := filepath.Join(dir, "agent"), filepath.Join(dir, "first")
	write(t, agent, "agent binary")
	write(t, first, "init binary")
	state := filepath.Join(dir, "state.img")
	write(t, state, "file system")
	var images [2][]byte
	for i := range images {
		out := filepath.Join(dir, string(rune('a'+i)))
		lines, err := build(t.Context(), image{pkg: pkg, agent: agent, first: first, state: state}, out)
		require.NoError(t, err)
		require.Contains(t, lines, filepath.Join(out, "initramfs.cpio")+" sha256:")
		kernel, err := os.ReadFile(filepath.Join(out, "vmlinuz"))
		require.NoError(t, err)
		require.Equal(t, "content of vmlinuz-6.1.0", string(kernel))
		images[i], err = os.ReadFile(filepath.Join(out, "initramfs.cpio"))
		require.NoError(t, err)
		left, err := os.ReadDir(out)
		require.NoError(t, err)
		require.Len(t, left, 2)
		require.NoError(t, os.Chtimes(agent, time.Time{}, time.Unix(int64(i), 0)))
	}
	require.Equal(t, images[0], images[1])
	require.Contains(t, string(images[0]), "content of virtio_net.ko")
	require.Contains(t, string(images[0]), "file system")
	require.NotContains(t, string(images[0]), "other.ko")
}

func TestMissingParts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	write(t, program, "binary")
	for want, files := range map[string][]string{"contains no kernel": {"boot/config"}, "no module virtio_ring.ko": {"boot/vmlinuz-6.1.0"}} {
		_, err := build(t.Context(), image{pkg: kernelPackage(t, files...), agent: program, first: program, state: program}, dir)
		require.ErrorContains(t, err, want)
	}
	_, err := build(t.Context(), image{pkg: filepath.Join(dir, "none.deb"), agent: program, first: program}, dir)
	require.Error(t, err)
}

// cpio, which shares no code with the writer, reads the archive.
func TestArchive(t *testing.T) {
	t.Parallel()
	need.Program(t, "cpio", "run: sh tools/need.sh host")
	data := archive([]item{{name: "etc", mode: folder | 0o755}, {name: "etc/file", mode: file | 0o644, data: []byte("text\n")}, {name: "init", mode: file | 0o755, data: []byte("x")}})
	require.Zero(t, len(data)%512)
	list := exec.CommandContext(t.Context(), "cpio", "-itv", "--quiet")
	list.Stdin = bytes.NewReader(data)
	out, err := list.Output()
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	require.Len(t, lines, 3)
	for i, want := range []string{"drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x"} {
		require.True(t, strings.HasPrefix(lines[i], want), lines[i])
	}
	dir := t.TempDir()
	extract := exec.CommandContext(t.Context(), "cpio", "-id", "--quiet")
	extract.Dir, extract.Stdin = dir, bytes.NewReader(data)
	require.NoError(t, extract.Run())
	text, err := os.ReadFile(filepath.Join(dir, "etc", "file"))
	require.NoError(t, err)
	require.Equal(t, "text\n", string(text))
}

func TestReadRejectsGarbage(t *testing.T) {
	t.Parallel()
	_, _, err := read(strings.NewReader(strings.Repeat("x", 1024)))
	require.ErrorIs(t, err, tar.ErrHeader)
}
