package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/identity"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// TestTornNewestVersion: a version that no longer reads is passed over.
func TestTornNewestVersion(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int64{"empty": 0, "cut": 20} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := enrolled(t)
			first := r.serial()
			r.due()
			r.wire.lose = func(_ int, call string) string { // stored, but never used
				if strings.HasSuffix(call, "/wait") {
					return "request"
				}
				return ""
			}
			r.step()
			r.wire.lose = nil
			require.NotEqual(t, first, r.serial())
			require.NoError(t, os.Truncate(versionPath(r.conf, r.agent.identity.Current().Number), size))
			require.True(t, r.boot())
			require.True(t, r.agent.ReconcileIdentity(t.Context()).Ready)
			r.converge()
			r.whole(name)
		})
	}
}

// versionPath is the file of a stored identity.
func versionPath(c Config, number int) string {
	return filepath.Join(c.StateDir, "identity", fmt.Sprintf("%08d.json", number))
}

// stored lists the files of versions.
func (r *rig) stored() (names []string) {
	r.t.Helper()
	entries, err := os.ReadDir(filepath.Join(r.conf.StateDir, "identity"))
	require.NoError(r.t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestPruneOldVersions: a long life leaves no heap of identities, and a
// recovery no heap of requests with dead tokens.
func TestPruneOldVersions(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	for range 8 {
		r.due()
		r.converge()
	}
	require.Len(t, r.agent.identity.Versions(), 2)
	require.Len(t, r.stored(), 2)
	r.book.Refuse = func(path string) error {
		if path == "recover" {
			return schema.NewError(schema.KindTokenConsumed, "spent")
		}
		return nil
	}
	r.pass(trust.CertTTL + time.Hour)
	r.wire.n.Store(0)
	require.Equal(t, identity.ActRecover, r.step().Action)
	require.EqualValues(t, 2, r.wire.n.Load())
}

// TestKeepConfirmedVersion: renewals that are stored and then
// refused do not push out the identity that works, nor its recovery token.
func TestKeepConfirmedVersion(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	first := r.serial()
	r.due()
	for range 3 {
		r.book.Refuse = func(path string) error {
			if path == "probe" {
				return agenttest.IdentityError(schema.ReasonSerialSuperseded)
			}
			return nil
		}
		require.Equal(t, schema.ReasonSerialSuperseded, schema.AsError(r.step().Err).Reason)
		require.Equal(t, first, r.serial())
		r.pass(2 * time.Hour)
	}
	require.LessOrEqual(t, len(r.stored()), 2+1)
	require.True(t, r.boot())
	r.book.Mu.Lock() // as of a server that gave none of them a slot
	r.book.Void[r.book.Pending.Facts.Serial], r.book.Pending = true, nil
	r.book.Mu.Unlock()
	for range 8 {
		r.step()
		r.pass(time.Second)
	}
	require.Contains(t, r.stored(), "00000001.json")
	r.book.Refuse = nil
	r.converge()
	r.whole("the proven version")
}

// TestPruneKeepsForeignVersions: a start with another node's id, or over an
// unreadable file, removes nothing.
func TestPruneKeepsForeignVersions(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	r.due()
	r.converge()
	had := r.stored()
	own := r.conf.NodeID
	r.conf.NodeID = schema.NewID()
	require.True(t, r.boot())
	r.agent.ReconcileIdentity(t.Context())
	require.Subset(t, r.stored(), had)
	r.conf.NodeID = own
	require.NoError(t, os.Truncate(versionPath(r.conf, 2), 1))
	require.True(t, r.boot())
	r.agent.ReconcileIdentity(t.Context())
	require.Subset(t, r.stored(), had)
}

// TestKeepUnreadableStagedKeys: a disk that does not give them at the moment
// of a certificate's first use may give them later.
func TestKeepUnreadableStagedKeys(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	path := r.state().File("next-key.json")
	require.NoError(t, os.Mkdir(path, 0o700)) // reads as an error of the disk
	require.True(t, r.boot())
	r.converge()
	require.True(t, r.logged("cannot remove a staged key"))
	require.DirExists(t, path)
}
