package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// TestNewestVersionTorn: a version that no longer reads is passed over.
func TestNewestVersionTorn(t *testing.T) {
	t.Parallel()
	for _, file := range []string{certFile, keyFile, chainFile, metaFile} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			r := enrolled(t)
			first := r.serial()
			r.due()
			r.wire.lose = func(_ int, path string) string { // stored, but never used
				if strings.HasSuffix(path, "/heartbeat") || strings.HasSuffix(path, "/wait") {
					return "request"
				}
				return ""
			}
			r.step()
			r.wire.lose = nil
			require.NotEqual(t, first, r.serial())
			path := r.agent.keeper.store.path(r.agent.keeper.inUse.Load().number, file)
			require.NoError(t, os.Truncate(path, 20))
			if file == chainFile {
				require.NoError(t, os.Remove(path))
			}
			require.True(t, r.boot())
			require.True(t, r.agent.Keep(t.Context()).Ready)
			r.settle()
			r.whole(file)
		})
	}
}

// stored lists the folders of versions.
func (r *rig) stored() (names []string) {
	r.t.Helper()
	entries, err := os.ReadDir(r.agent.keeper.store.dir)
	require.NoError(r.t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestOldVersionsAreForgotten: a long life leaves no heap of identities, and a
// recovery no heap of requests with dead tokens.
func TestOldVersionsAreForgotten(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	for range 8 {
		r.due()
		r.settle()
	}
	require.Len(t, r.agent.keeper.versions, keepVersions)
	require.Len(t, r.stored(), keepVersions)
	r.book.refuse = func(path string) error {
		if path == "recover" {
			return schema.Errorf(schema.KindTokenConsumed, "spent")
		}
		return nil
	}
	r.pass(trust.CertTTL + time.Hour)
	r.wire.n = 0
	require.Equal(t, ActRecover, r.step().Action)
	require.Equal(t, keepVersions, r.wire.n)
}

// TestTheProvenVersionOutlivesRefusedOnes: renewals that are stored and then
// refused do not push out the identity that works, nor its recovery token.
func TestTheProvenVersionOutlivesRefusedOnes(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	first := r.serial()
	r.due()
	for range 3 {
		r.book.refuse = func(path string) error {
			if path == "heartbeat" {
				return identityError(schema.ReasonSerialSuperseded)
			}
			return nil
		}
		require.Equal(t, schema.ReasonSerialSuperseded, schema.AsError(r.step().Err).Reason)
		require.Equal(t, first, r.serial())
		r.pass(2 * time.Hour)
	}
	require.LessOrEqual(t, len(r.stored()), keepVersions+1)
	require.True(t, r.boot())
	r.book.mu.Lock() // as of a server that gave none of them a slot
	r.book.void[r.book.pending.facts.Serial], r.book.pending = true, nil
	r.book.mu.Unlock()
	for range 8 {
		r.step()
		r.pass(time.Second)
	}
	require.Contains(t, r.stored(), "00000001")
	r.book.refuse = nil
	r.settle()
	r.whole("the proven version")
}

// TestForeignAndBrokenVersionsAreLeft: a start with another node's id, or over a
// folder that does not read, takes nothing away.
func TestForeignAndBrokenVersionsAreLeft(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	r.due()
	r.settle()
	had := r.stored()
	own := r.conf.NodeID
	r.conf.NodeID = schema.NewID()
	require.True(t, r.boot())
	r.agent.Keep(t.Context())
	require.Subset(t, r.stored(), had)
	r.conf.NodeID = own
	require.NoError(t, os.Truncate(filepath.Join(r.agent.keeper.store.path(2), keyFile), 1))
	require.True(t, r.boot())
	r.agent.Keep(t.Context())
	require.Subset(t, r.stored(), had)
}

// TestUnreadableStagedKeysAreKept: a disk that does not give them at the moment
// of a certificate's first use may give them later.
func TestUnreadableStagedKeysAreKept(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	path := r.agent.keeper.state.file(stagedFile)
	require.NoError(t, os.Mkdir(path, 0o700)) // reads as an error of the disk
	require.Error(t, r.agent.keeper.keys.settle(r.agent.keeper.inUse.Load()))
	require.DirExists(t, path)
}
