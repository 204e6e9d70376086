package pgtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// NewSmall starts a server whose databases are on a file system of their own, and returns its folder. The
// server's log of writes is elsewhere, so that a full disk is an error of a statement and does not stop the
// server. size is that of a tmpfs, such as 128m. It needs root.
func NewSmall(tb testing.TB, size string) (m *Member, folder string) {
	tb.Helper()
	bin, err := findPrograms()
	must(tb, err)
	dir, attr, err := dataDir(bin)
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(tb, err)
	folder = filepath.Join(dir, "small")
	must(tb, os.Mkdir(folder, 0o700))
	must(tb, syscall.Mount("tmpfs", folder, "tmpfs", 0, fmt.Sprintf("size=%s,mode=700,uid=%d,gid=%d", size, attr.Credential.Uid, attr.Credential.Gid)))
	tb.Cleanup(func() { must(tb, syscall.Unmount(folder, 0)) })
	base := filepath.Join(dir, "data", "base")
	if out, err := exec.CommandContext(tb.Context(), "cp", "-a", base, folder).CombinedOutput(); err != nil {
		tb.Fatalf("cp: %v: %s", err, out)
	}
	must(tb, os.RemoveAll(base))
	must(tb, os.Symlink(filepath.Join(folder, "base"), base))
	m = newMember(tb, bin, dir, attr)
	m.Start()
	must(tb, m.exec("CREATE DATABASE gpuaas"))
	return m, folder
}
