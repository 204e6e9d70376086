package schema

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIDs(t *testing.T) {
	t.Parallel()
	node := NewID()
	require.True(t, IsID(node))
	require.False(t, IsID("gpu-17"))
	require.False(t, IsID("{"+node[:36-2]+"}"))

	id, ok := NodeIDOfWorkflow(NodeWorkflowID(node))
	require.True(t, ok)
	require.Equal(t, node, id)
	id, ok = NodeIDOfWorkflow(ReissueWorkflowID(node))
	require.True(t, ok)
	require.Equal(t, node, id)
	_, ok = NodeIDOfWorkflow(FleetWorkflowID("reissue"))
	require.False(t, ok)
}

func TestDerivedIDs(t *testing.T) {
	t.Parallel()
	same := OperationID("n", ActionDrain, "key")
	require.Equal(t, same, OperationID("n", ActionDrain, "key"))
	require.NotEqual(t, same, OperationID("n", ActionRetire, "key"))
	require.NotEqual(t, same, OperationID("m", ActionDrain, "key"))
	fresh := OperationID("n", ActionDrain, "")
	require.NotEqual(t, fresh, OperationID("n", ActionDrain, ""))
	require.NotEqual(t, TaskID("o", "p"), ResourceID("o", "p"))
	require.NotEqual(t, TaskID("ab", "c"), TaskID("a", "bc"))
}

func TestIdentityRoundTrip(t *testing.T) {
	t.Parallel()
	want := Identity{Env: "dev", NodeID: NewID(), Incarnation: 12}
	u, err := url.Parse(want.URI())
	require.NoError(t, err)
	got, err := ParseIdentity(u)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func FuzzParseIdentity(f *testing.F) {
	node := NewID()
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
		id, err := ParseIdentity(u)
		if err != nil {
			require.Equal(t, KindInvalidNodeIdentity, KindOf(err))
			return
		}
		again, err := url.Parse(id.URI())
		require.NoError(t, err)
		back, err := ParseIdentity(again)
		require.NoError(t, err)
		require.Equal(t, id, back)
	})
}
