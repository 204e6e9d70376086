package host

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

func TestArtifacts(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, root+"/proc/sys/kernel/osrelease", "6.8.0-90-generic\n")
	write(t, root+"/sys/module/nvidia/version", "570.86.15\n")
	write(t, root+"/etc/os-release", "ID=ubuntu\nVERSION_ID=\"24.04\"\nIMAGE_ID=gpu\nIMAGE_VERSION=7\x1b\n")
	write(t, root+"/usr/bin/containerd", "one")
	require.NoError(t, syscall.Mkfifo(root+"/pipe", 0o600))
	a := Artifacts{Host: New(root, ""), Files: map[string]string{"containerd": root + "/usr/bin/containerd", "pipe": root + "/pipe",
		"folder": root + "/usr", "absent": root + "/absent"}}
	first := a.Read(t.Context())
	require.NoError(t, inventory.CheckArtifacts(first))
	require.Equal(t, map[string]string{"kernel": "6.8.0-90-generic", "gpu_driver": "570.86.15", "os_image": first["os_image"],
		"containerd": schema.SHA256Hex([]byte("one")), "pipe": inventory.Unreadable, "folder": inventory.Unreadable}, first)
	require.True(t, strings.HasPrefix(first["os_image"], "gpu-7"), first["os_image"])
	require.NotContains(t, first["os_image"], "\x1b")

	write(t, root+"/etc/os-release", "ID=ubuntu\nVERSION_ID=24.04\n")
	require.NoError(t, os.Remove(root+"/usr/bin/containerd"))
	require.NoError(t, os.RemoveAll(root+"/sys"))
	second := a.Read(t.Context())
	require.Equal(t, "ubuntu-24.04", second["os_image"])
	require.NotContains(t, second, "containerd")
	require.NotContains(t, second, "gpu_driver", "the driver is not loaded")
	require.Empty(t, a.hashed, "a file that is gone is forgotten")
}

// A file is read again only after it changed.
func TestArtifactDigests(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	a := Artifacts{Host: New(t.TempDir(), ""), Files: map[string]string{"file": path}}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	set := func(content string, at time.Time) string {
		write(t, path, content)
		require.NoError(t, os.Chtimes(path, at, at))
		return a.Read(t.Context())["file"]
	}
	one := set("one", at)
	require.Equal(t, schema.SHA256Hex([]byte("one")), one)
	require.Equal(t, one, set("two", at), "same size and time: not read again")
	require.Equal(t, schema.SHA256Hex([]byte("two")), set("two", at.Add(time.Second)))
	require.Equal(t, schema.SHA256Hex([]byte("three")), set("three", at.Add(time.Second)))
	large, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, large.Truncate(maxArtifactFile+1))
	require.NoError(t, large.Close())
	require.Equal(t, inventory.Unreadable, a.Read(t.Context())["file"])
}

func TestParseArtifacts(t *testing.T) {
	t.Parallel()
	files, err := ParseArtifacts(" /usr/bin/containerd=containerd, /opt/a=b=cni/bridge,")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"containerd": "/usr/bin/containerd", "cni/bridge": "/opt/a=b"}, files)
	files, err = ParseArtifacts("")
	require.NoError(t, err)
	require.Empty(t, files)
	many := strings.Builder{}
	for i := range inventory.MaxArtifacts {
		many.WriteString("/f=f" + strings.Repeat("x", i) + ",")
	}
	for _, bad := range []string{"containerd", "usr/bin/x=x", "/x=", "/x=a b", "/x=kernel", "/x=agent", "/x=a,/y=a", many.String()} {
		_, err := ParseArtifacts(bad)
		require.Error(t, err, bad)
	}
}

// Read stops when its context ends, and does not keep what it read until then.
func TestArtifactsStop(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	write(t, path, "one")
	a := Artifacts{Host: New(t.TempDir(), ""), Files: map[string]string{"file": path}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, inventory.Unreadable, a.Read(ctx)["file"])
	require.Equal(t, schema.SHA256Hex([]byte("one")), a.Read(t.Context())["file"])
}
