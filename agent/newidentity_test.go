package agent

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// newIdentity offers agent.new_identity and steps until the server has its result.
func (r *rig) newIdentity(seq int64) task.Result {
	r.t.Helper()
	r.f.Note(func() { r.f.ID.Incarnation = r.agent.identity.Current().ID.Incarnation })
	p := r.f.Payload(task.NewIdentity, seq, nil)
	r.f.Offers <- r.f.OfferOf(p, 1)
	for len(r.f.Offers) > 0 {
		require.NoError(r.t, r.step().poll)
	}
	return r.f.Result(p.TaskID)
}

// The task gives the node another certificate, another recovery key and another recovery token.
// A copy of the node's files from before has nothing that the server accepts.
func TestNewIdentity(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]bool{"the same process": false, "after a restart": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := enrolled(t)
			before := r.agent.identity.Current()
			key, env := content(t, r.state().File("recovery-key.pem")), r.envToken()
			result := r.newIdentity(1)
			require.Equal(t, task.Succeeded, result.Status, result.Message)
			require.JSONEq(t, "{}", string(result.Output), "the token is no output")
			require.True(t, r.book.Accepts(before.Facts.Serial), "until the claim")
			if restart {
				require.True(t, r.boot())
			}
			r.converge()
			now := r.agent.identity.Current()
			require.Equal(t, int64(2), now.ID.Incarnation)
			require.NotEqual(t, before.Facts.SPKI, now.Facts.SPKI)
			require.NotEqual(t, key, content(t, r.state().File("recovery-key.pem")))
			require.Equal(t, []bool{true}, r.book.Proven)
			require.NotEqual(t, env, r.envToken())
			require.Equal(t, now.Meta.RecoveryToken, r.envToken())
			require.False(t, r.book.Accepts(before.Facts.Serial))
			for _, file := range []string{"next-token.json", "next-recovery-key.json"} {
				require.NoFileExists(t, r.state().File(file))
			}
			require.NotContains(t, r.log.String(), "gpuet_")
			r.whole("renewed")
			result = r.newIdentity(2)
			require.Equal(t, task.Succeeded, result.Status, result.Message)
			r.converge()
			require.Equal(t, int64(3), r.agent.identity.Current().ID.Incarnation)
		})
	}
}

// A token that the server refuses, or that the agent cannot get or store, changes nothing.
func TestNewIdentityRefused(t *testing.T) {
	t.Parallel()
	t.Run("no token", func(t *testing.T) {
		t.Parallel()
		r := enrolled(t)
		r.book.Refuse = func(what string) error {
			if what == "identity-token" {
				return schema.NewError(schema.KindLeaseLost, "another task")
			}
			return nil
		}
		require.Equal(t, task.Failed, r.newIdentity(1).Status)
		r.converge()
		require.Equal(t, int64(1), r.agent.identity.Current().ID.Incarnation)
	})
	t.Run("no file", func(t *testing.T) {
		t.Parallel()
		r := enrolled(t)
		require.NoError(t, os.MkdirAll(r.state().File("next-token.json", "x"), 0o700))
		require.Equal(t, task.Failed, r.newIdentity(1).Status)
		r.converge()
		require.Equal(t, int64(1), r.agent.identity.Current().ID.Incarnation)
	})
	t.Run("the token is refused", func(t *testing.T) {
		t.Parallel()
		r := enrolled(t)
		serial := r.serial()
		require.Equal(t, task.Succeeded, r.newIdentity(1).Status)
		r.book.Token() // voids the token
		for range 3 {
			out := r.step()
			require.True(t, out.Ready)
			r.pass(time.Minute)
		}
		require.Equal(t, serial, r.serial())
		require.Equal(t, 2, r.f.Count("enroll"), "one attempt")
		require.NoFileExists(t, r.state().File("next-token.json"))
		r.pass(trust.CertTTL + time.Hour)
		r.converge()
		r.whole("after the refusal")
		require.Equal(t, trust.IssuedByRecover, r.lastVia())
	})
}
