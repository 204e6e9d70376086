package adminapi_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/schema"
)

func TestParseSelector(t *testing.T) {
	t.Parallel()
	got, err := adminapi.ParseSelector(" rack = r1, tier!=test ,zone in (a, b),x notin (c),gpu,!spare,host=gpu-*,k== v,e= ")
	require.NoError(t, err)
	assert.Equal(t, adminapi.Selector{
		{Key: "rack", Op: adminapi.OpIn, Values: []string{"r1"}}, {Key: "tier", Op: adminapi.OpNotIn, Values: []string{"test"}},
		{Key: "zone", Op: adminapi.OpIn, Values: []string{"a", "b"}}, {Key: "x", Op: adminapi.OpNotIn, Values: []string{"c"}},
		{Key: "gpu", Op: adminapi.OpExists}, {Key: "spare", Op: adminapi.OpNotExists},
		{Key: "host", Op: adminapi.OpIn, Values: []string{"gpu-*"}}, {Key: "k", Op: adminapi.OpIn, Values: []string{"v"}},
		{Key: "e", Op: adminapi.OpIn, Values: []string{""}},
	}, got)
	none, err := adminapi.ParseSelector("  ")
	require.NoError(t, err)
	assert.Empty(t, none)
	for _, bad := range []string{",", "a,", "=v", "a b", "a in", "a in b", "a in (b", "a of (b)", "a=b=c", "a=*", "a=;DROP", "-a=b", "!", "!sku",
		"region", "é=1", "a=" + strings.Repeat("x", 64), strings.Repeat("a,", 20) + "a"} {
		_, err := adminapi.ParseSelector(bad)
		require.Error(t, err, bad)
		assert.Equal(t, "bad_selector", schema.AsError(err).Reason, bad)
	}
}

// Whatever parses holds only characters that a label may have.
func FuzzParseSelector(f *testing.F) {
	for _, seed := range []string{"rack=r1", "a in (b,c),!d", "k!=v", "((", "a notin ()", ",,", "a==b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := adminapi.ParseSelector(text)
		if err != nil {
			assert.Equal(t, schema.KindInvalidRequest, schema.KindOf(err))
			return
		}
		assert.LessOrEqual(t, len(s), 20)
		for _, r := range s {
			assert.NotEmpty(t, r.Key)
			for _, text := range append(r.Values, r.Key) {
				assert.LessOrEqual(t, len(text), 253)
				assert.NotContains(t, text, "'")
				assert.NotContains(t, text, ")")
				assert.Equal(t, strings.TrimSpace(text), text)
			}
		}
	})
}
