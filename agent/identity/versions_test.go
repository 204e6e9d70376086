package identity

import (
	"bytes"
	"log/slog"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// alteringDisk reads a text for another one.
type alteringDisk struct {
	disk.OS
	from, to string
}

func (d alteringDisk) ReadFile(path string) ([]byte, error) {
	data, err := d.OS.ReadFile(path)
	return bytes.ReplaceAll(data, []byte(d.from), []byte(d.to)), err
}

func versionsOn(t *testing.T, fs disk.FS) (versionStore, Meta) {
	t.Helper()
	ca := agenttest.NewAuthority(t, "node ca")
	certPEM, keyPEM := newPair(t, ca, trust.Identity{Env: "test", NodeID: schema.NewID(), Incarnation: 1})
	s := newVersionStore(Config{}, disk.StateDir{Path: t.TempDir(), FS: fs}, slog.New(slog.DiscardHandler))
	return s, Meta{Certificate: string(certPEM), Key: string(keyPEM), RecoveryToken: "the recovery token"}
}

// TestAddComparesVersion: a version that reads back with another recovery token is no
// version, and no file of it stays.
func TestAddComparesVersion(t *testing.T) {
	t.Parallel()
	s, m := versionsOn(t, alteringDisk{from: "recovery token", to: "recovery tokem"})
	_, err := s.add(m)
	require.ErrorContains(t, err, "differs")
	numbers, err := s.numbers()
	require.NoError(t, err)
	require.Empty(t, numbers)
}

// TestPruneStagedFiles: what a crash left of a version, with its key, is wiped.
func TestPruneStagedFiles(t *testing.T) {
	t.Parallel()
	s, m := versionsOn(t, disk.OS{})
	v, err := s.add(m)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(s.path(2)+".tmp", []byte(m.Key), 0o600))
	require.NoError(t, s.prune([]*Version{v}, nil))
	require.NoFileExists(t, s.path(2)+".tmp")
	require.FileExists(t, s.path(1))
}
