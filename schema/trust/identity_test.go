package trust_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

func TestIdentityRoundTrip(t *testing.T) {
	t.Parallel()
	want := trust.Identity{Env: "dev", NodeID: schema.NewID(), Incarnation: 12}
	u, err := url.Parse(want.URI())
	require.NoError(t, err)
	got, err := trust.ParseIdentity(u)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestParseIdentityRejects(t *testing.T) {
	t.Parallel()
	node := schema.NewID()
	for _, s := range []string{"", "spiffe://dev/node/" + node, "spiffe://dev/node/" + node + "/01", "spiffe://dev/node/" + node + "/0",
		"spiffe://dev/node/" + node + "/-1", "spiffe://dev/node/" + node + "/+1", "spiffe://dev/node/" + node + "/99999999999999999999",
		"spiffe://dev/node/" + node + "/1/2", "spiffe://dev/node/" + node + "/1/", "spiffe://dev//node/" + node + "/1", "spiffe://dev/user/" + node + "/1",
		"spiffe://dev/node/x/1", "spiffe:///node/" + node + "/1", "https://dev/node/" + node + "/1", "spiffe://u@dev/node/" + node + "/1",
		"spiffe://dev/node/" + node + "/1?x=1", "spiffe://dev/node/" + node + "/1?", "spiffe://dev/node/" + node + "/1#f", "spiffe://dev/%6eode/" + node + "/1"} {
		u, err := url.Parse(s)
		require.NoError(t, err)
		_, err = trust.ParseIdentity(u)
		require.Equal(t, schema.KindInvalidNodeIdentity, schema.KindOf(err), s)
		require.Equal(t, schema.ReasonIdentityMismatch, schema.AsError(err).Reason, s)
	}
	_, err := trust.ParseIdentity(nil)
	require.Equal(t, schema.KindInvalidNodeIdentity, schema.KindOf(err))
}

func FuzzParseIdentity(f *testing.F) {
	node := schema.NewID()
	for _, s := range []string{
		"spiffe://dev/node/" + node + "/1", "spiffe://dev/node/" + node + "/01", "spiffe://dev/node/" + node + "/0",
		"spiffe://dev/node/" + node + "/1/2", "https://dev/node/" + node + "/1", "spiffe:///node/" + node + "/1",
		"spiffe://dev/node/x/1", "spiffe://u@dev/node/" + node + "/1", "spiffe://dev/node/" + node + "/1?x=1",
		"spiffe://dev/node/" + node + "/-1", "spiffe://dev/node/" + node + "/99999999999999999999",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := url.Parse(s)
		if err != nil {
			return
		}
		id, err := trust.ParseIdentity(u)
		if err != nil {
			require.Equal(t, schema.KindInvalidNodeIdentity, schema.KindOf(err))
			return
		}
		again, err := url.Parse(id.URI())
		require.NoError(t, err)
		back, err := trust.ParseIdentity(again)
		require.NoError(t, err)
		require.Equal(t, id, back)
	})
}

func TestValidEnv(t *testing.T) {
	t.Parallel()
	for _, env := range []string{"p", "prod", "eu-1.prod", strings.Repeat("a", 40)} {
		assert.True(t, trust.ValidEnv(env), env)
	}
	for _, env := range []string{"", "Prod", "prod/eu", "prod-", ".prod", "prod\n", strings.Repeat("a", 41)} {
		assert.False(t, trust.ValidEnv(env), "%q", env)
	}
}
