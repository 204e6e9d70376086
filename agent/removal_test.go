package agent

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// removal is a signed removal of the node's identity as of the server's time.
func (r *rig) removal(change func(*trust.Removal)) json.RawMessage {
	id := r.f.ID
	id.Incarnation = r.agent.identity.Current().ID.Incarnation
	return r.f.SignedRemoval(r.f.Signer, trust.RemovalPayloadType, id, r.clock.Now(), change)
}

// A state in the server's database is no reason to delete anything. Without a valid
// removal the agent keeps all it has, asks slowly, logs the fault once, and works again as
// soon as the server accepts it.
func TestUnprovenRemoval(t *testing.T) {
	t.Parallel()
	same := func(*trust.Removal) {}
	for reason, document := range map[string]func(*rig) json.RawMessage{
		"no_removal":         func(*rig) json.RawMessage { return nil },
		trust.ReasonEnvelope: func(*rig) json.RawMessage { return json.RawMessage("{") },
		trust.ReasonSignature: func(r *rig) json.RawMessage {
			return r.f.SignedRemoval(r.f.Staged, trust.RemovalPayloadType, r.f.ID, r.clock.Now(), same)
		},
		trust.ReasonPayloadType: func(r *rig) json.RawMessage {
			return r.f.SignedRemoval(r.f.Signer, task.PayloadType, r.f.ID, r.clock.Now(), same)
		},
		trust.ReasonOtherNode: func(r *rig) json.RawMessage {
			return r.removal(func(d *trust.Removal) { d.NodeID = schema.NewID() })
		},
		trust.ReasonOtherIdentity: func(r *rig) json.RawMessage {
			return r.removal(func(d *trust.Removal) { d.Incarnation-- })
		},
		trust.ReasonPastExpiry: func(r *rig) json.RawMessage {
			return r.removal(func(d *trust.Removal) {
				d.IssuedAt, d.ExpiresAt = d.IssuedAt.AddDate(0, -1, 0), d.ExpiresAt.AddDate(0, -1, 0)
			})
		},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			r := enrolled(t)
			r.converge()
			secrets, serial := r.secrets(), r.serial()
			r.book.IsRemoved, r.f.Removal = true, func() json.RawMessage { return document(r) }
			attempts := 0
			for begin := r.clock.Now(); r.clock.Now().Sub(begin) < 20*time.Hour; { // shorter than the certificate's life
				r.wire.n.Store(0)
				out := r.step()
				require.False(t, out.Removed)
				attempts += min(int(r.wire.n.Load()), 1)
				require.LessOrEqual(t, out.Wait, 15*time.Minute)
				r.pass(max(out.Wait, time.Second))
				if attempts == 3 {
					require.True(t, r.boot(), "a restart changes nothing")
				}
			}
			require.Greater(t, attempts, 100)
			require.Less(t, attempts, 400, "it asks slowly")
			all := strings.Builder{}
			for _, text := range r.files() {
				all.WriteString(strings.ReplaceAll(text, `\n`, "\n"))
			}
			for _, s := range secrets {
				require.Contains(t, all.String(), s)
			}
			require.Equal(t, 2, strings.Count(r.log.String(), "there is no valid removal"), "once for each process")
			require.Contains(t, r.log.String(), `"reason":"`+reason+`"`)
			require.NoFileExists(t, r.agent.state.File("removed.json"))

			r.book.IsRemoved = false
			r.converge()
			require.True(t, r.book.Accepts(r.serial()))
			require.Contains(t, r.log.String(), "the server accepts the node again")
			require.NotEmpty(t, serial)
		})
	}
}

// A worker signs the removal some seconds after its operation ended. The answers until then are not an error.
func TestRemovalIsSignedLater(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	r.converge()
	signed := r.removal(func(*trust.Removal) {})
	r.book.IsRemoved = true
	for range 2 {
		out := r.step()
		require.False(t, out.Removed)
		r.pass(out.Wait)
	}
	require.True(t, r.logged("waiting for the signed removal"))
	r.f.Removal = func() json.RawMessage { return signed }
	require.True(t, r.step().Removed)
	require.NotContains(t, r.log.String(), `"level":"ERROR"`)
}

// Thirty seconds of a wrong state cost the node about as long.
func TestShortWrongRemoval(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	serial := r.serial()
	r.book.IsRemoved = true
	begin := r.clock.Now()
	for r.clock.Now().Sub(begin) < 30*time.Second {
		r.pass(max(r.step().Wait, time.Second))
	}
	r.book.IsRemoved = false
	r.converge()
	require.Equal(t, serial, r.serial())
	require.Less(t, r.clock.Now().Sub(begin), 3*time.Minute)
}

// A removal of an identity that a reissue replaced is not one of the present identity,
// and an expired removal does not become valid again because a server sets its time back.
func TestReplayedRemoval(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	old := r.removal(func(*trust.Removal) {})
	r.setToken(r.book.Token())
	require.True(t, r.boot())
	r.converge()
	require.Equal(t, int64(2), r.agent.identity.Current().ID.Incarnation)
	r.book.IsRemoved, r.f.Removal = true, func() json.RawMessage { return old }
	require.False(t, r.step().Removed)
	require.True(t, r.logged(trust.ReasonOtherIdentity))

	expired := r.removal(func(d *trust.Removal) { d.ExpiresAt = d.IssuedAt.Add(time.Minute) })
	r.book.IsRemoved = false
	r.pass(time.Hour)
	r.converge()
	r.clock.add(-time.Hour)
	r.book.IsRemoved, r.f.Removal = true, func() json.RawMessage { return expired }
	require.False(t, r.step().Removed)
	require.True(t, r.logged(`"reason":"`+trust.ReasonPastExpiry))
}

// A removal wipes the keys of older identities, too, which the scripts only rename. It
// touches no other file, and not the target of a link.
func TestRemovalWipesOlderIdentities(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	r.converge()
	folder := filepath.Dir(r.conf.KeyPath)
	const stamp = ".stale-20260301T120000Z-17"
	elsewhere := filepath.Join(t.TempDir(), "key.pem")
	var stale, others []string
	write := func(list *[]string, path string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte("PRIVATE KEY"), 0o600))
		*list = append(*list, path)
	}
	for _, path := range []string{r.conf.CertPath, r.conf.KeyPath, filepath.Join(r.conf.StateDir, "recovery.pem"),
		filepath.Join(r.conf.StateDir, "identity.json"), filepath.Join(r.conf.StateDir, "identity")} {
		write(&stale, path+stamp)
	}
	write(&stale, filepath.Join(r.conf.StateDir+stamp, "identity", "00000001.json"))
	write(&stale, filepath.Join(r.conf.StateDir, "staged-key.pem"+stamp, "deeper", "key"))
	for _, path := range []string{filepath.Join(folder, "other.pem"+stamp), filepath.Join(folder, "key.pem.bak"), elsewhere} {
		write(&others, path)
	}
	link := r.conf.KeyPath + ".stale-link"
	require.NoError(t, os.Symlink(elsewhere, link))
	stale = append(stale, link, r.conf.StateDir+stamp)

	signed := r.removal(func(*trust.Removal) {})
	r.book.IsRemoved, r.f.Removal = true, func() json.RawMessage { return signed }
	require.True(t, r.step().Removed)
	for _, path := range stale {
		_, err := os.Lstat(path)
		require.ErrorIs(t, err, fs.ErrNotExist, path)
	}
	for _, path := range others {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "PRIVATE KEY", string(text), path)
	}
}

// A node that never enrolled has nothing that a removal could name: it waits, and a new
// token still works.
func TestRemovedBeforeEnrollment(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.book.IsRemoved = true
	r.f.Removal = func() json.RawMessage {
		return r.f.SignedRemoval(r.f.Signer, trust.RemovalPayloadType, r.f.ID, r.clock.Now(), func(*trust.Removal) {})
	}
	require.True(t, r.boot())
	require.False(t, r.step().Removed)
	require.True(t, r.logged("no_identity"))
	r.book.IsRemoved = false
	r.pass(15 * time.Minute)
	r.converge()
}

// One answer with a time far ahead does not keep the node from ever being removed, also after a
// restart that stored that time.
func TestRemovalAfterOneWrongTime(t *testing.T) {
	t.Parallel()
	for name, restarts := range map[string]bool{"in one process": false, "after a restart": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := enrolled(t)
			ahead := r.clock.Now().AddDate(1, 0, 0)
			r.agent.clock.Observe(ahead)
			if restarts {
				memory, saved := r.state().File("identity.json"), map[string]any{}
				_, err := disk.At("").ReadJSON(memory, &saved)
				require.NoError(t, err)
				saved["server_time"] = ahead
				require.NoError(t, r.state().WriteJSON(memory, saved))
				require.True(t, r.boot())
			}
			r.converge()
			require.Equal(t, ahead.UTC(), r.agent.clock.Floor().UTC())
			r.book.IsRemoved = true
			r.f.Removal = func() json.RawMessage { return r.removal(func(*trust.Removal) {}) }
			removed, begin := false, r.clock.Now()
			for !removed && r.clock.Now().Sub(begin) < 2*time.Hour {
				out := r.step()
				removed = out.Removed
				r.pass(max(out.Wait, time.Second))
			}
			require.True(t, removed, "the wrong time counts permanently")
		})
	}
}
