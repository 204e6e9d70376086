// Package libvirttest runs the libvirt daemon of a process's tests.
package libvirttest

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/gpuaas/gpuaas/test/libvirtd"
	"github.com/gpuaas/gpuaas/test/testkit/devserver"
	"github.com/gpuaas/gpuaas/test/testkit/need"
)

// Host is a running daemon.
type Host struct{ *libvirtd.Host }

// Shared is the daemon of all tests of a process.
type Shared struct{ devserver.Shared[Host] }

// Open returns the daemon. The test needs its programs.
func (s *Shared) Open(tb testing.TB) Host {
	tb.Helper()
	for _, p := range libvirtd.Programs() {
		need.Program(tb, p, "run: sh tools/need.sh libvirt")
	}
	return s.Start(tb, func() (Host, error) {
		h, err := libvirtd.Start()
		return Host{h}, err
	})
}

// Folder returns a new folder that the daemon and QEMU can write, removed at the end of the test.
func (h Host) Folder(tb testing.TB) string {
	tb.Helper()
	dir, err := h.NewFolder()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Virsh runs a command without a provider and returns its output.
func (h Host) Virsh(tb testing.TB, args ...string) string {
	tb.Helper()
	out, err := h.Run(tb.Context(), args...)
	if err != nil {
		tb.Fatalf("virsh %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

// Image writes a kernel and an initramfs, by path, which only print ok to the console and halt.
// They replace a real image in tests of what libvirt does.
func Image(kernel, initramfs string) error {
	word := func(b []byte, v uint32) []byte { return append(b, byte(v), byte(v>>8), byte(v>>16), byte(v>>24)) }
	var magic, flags, load, header uint32 = 0x1badb002, 0x00010000, 0x100000, 32
	code := []byte{0x66, 0xba, 0xf8, 0x03, 0xb0, 'o', 0xee, 0xb0, 'k', 0xee, 0xb0, '\n', 0xee, 0xfa, 0xf4, 0xeb, 0xfd}
	var b []byte
	size := header + uint32(len(code))
	for _, v := range []uint32{magic, flags, -(magic + flags), load, load, load + size, load + size, load + header} {
		b = word(b, v)
	}
	return errors.Join(os.WriteFile(kernel, append(b, code...), 0o644), os.WriteFile(initramfs, []byte("empty"), 0o644))
}
