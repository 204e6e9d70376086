package fleet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

func TestShares(t *testing.T) {
	t.Parallel()
	got, err := ParseShares("slow=5%, silent=0.02,dies=1,")
	require.NoError(t, err)
	require.Equal(t, []Share{{Slow, 0, 0.05}, {Silent, 0, 0.02}, {Dies, 1, 0}}, got)
	none, err := ParseShares("")
	require.NoError(t, err)
	require.Empty(t, none)

	for _, text := range []string{"slow", "slow=", "slow=x", "slow=-1", "slow=101%", "slow=1.5", "slow=NaN%", "lazy=5%", "slow=1,slow=2", "slow=1e-1"} {
		_, err := ParseShares(text)
		require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err), text)
		require.Equal(t, "misbehave", schema.AsError(err).Reason, text)
	}
}

func TestAssign(t *testing.T) {
	t.Parallel()
	shares := []Share{{Slow, 0, 0.05}, {Silent, 0, 0.0001}, {Dies, 3, 0}, {Late, 0, 0}}
	first, err := assign(100, shares, 7)
	require.NoError(t, err)
	count := map[Misbehavior]int{}
	for _, m := range first {
		count[m]++
	}
	require.Equal(t, map[Misbehavior]int{"": 91, Slow: 5, Silent: 1, Dies: 3}, count, "a share that is not nothing is at least one node")

	again, err := assign(100, shares, 7)
	require.NoError(t, err)
	require.Equal(t, first, again, "the same seed chooses the same nodes")
	other, err := assign(100, shares, 8)
	require.NoError(t, err)
	require.NotEqual(t, first, other)

	_, err = assign(3, []Share{{Slow, 2, 0}, {Late, 2, 0}}, 1)
	require.Equal(t, "misbehave", schema.AsError(err).Reason)
}

func TestSpan(t *testing.T) {
	t.Parallel()
	one, err := ParseSpan("200ms")
	require.NoError(t, err)
	require.Equal(t, 200*time.Millisecond, one.draw())
	two, err := ParseSpan("100ms..2s")
	require.NoError(t, err)
	require.Equal(t, Span{100 * time.Millisecond, 2 * time.Second}, two)
	for range 100 {
		d := two.draw()
		require.True(t, d >= two.Min && d <= two.Max, d)
	}
	for _, text := range []string{"", "x", "2s..1s", "-1s", "1s..", "..1s", "1s..2s..3s"} {
		_, err := ParseSpan(text)
		require.Equal(t, "span", schema.AsError(err).Reason, text)
	}
}
