package store_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// verifierSet is the set of a version; a variant is another set of the same.
func verifierSet(version int64, variant string) trust.StoredSet {
	hash := func(v int64, variant string) string {
		if v == 0 {
			return ""
		}
		h := fmt.Sprintf("%x%x", v, variant)
		return strings.Repeat("0", 64-len(h)) + h
	}
	return trust.StoredSet{Version: version, Epoch: 1, Hash: hash(version, variant), PrevHash: hash(version-1, ""),
		Document: []byte(`{"payload":  "set"}`)}
}

func TestVerifierSetsAreAChain(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	_, err := e.NewestSet(ctx)
	requireKind(t, err, schema.KindNotFound, "")
	requireKind(t, e.PutSet(ctx, verifierSet(2, ""), operator), schema.KindInvalidRequest, "set_outdated")
	rows := e.changes(audit.SystemStream, func() {
		for range 2 {
			require.NoError(t, e.PutSet(ctx, verifierSet(1, ""), operator))
		}
	})
	require.Equal(t, []string{"trust.verifier_set_published succeeded"}, rows)
	requireKind(t, e.PutSet(ctx, verifierSet(1, "other"), operator), schema.KindInvalidRequest, "set_outdated")
	forked := verifierSet(2, "")
	forked.PrevHash = verifierSet(1, "other").Hash
	requireKind(t, e.PutSet(ctx, forked, operator), schema.KindInvalidRequest, "set_outdated")
	requireKind(t, e.PutSet(ctx, verifierSet(3, ""), operator), schema.KindInvalidRequest, "set_outdated")

	won := 0
	for _, err := range race(8, func(i int) error { return e.PutSet(ctx, verifierSet(2, fmt.Sprint(i)), operator) }) {
		if err == nil {
			won++
			continue
		}
		requireKind(t, err, schema.KindInvalidRequest, "set_outdated")
	}
	require.Equal(t, 1, won, "one of those that try at once follows")
	newest, err := e.NewestSet(ctx)
	require.NoError(t, err)
	require.Equal(t, int64(2), newest.Version)
	require.Equal(t, verifierSet(2, "").Document, newest.Document, "byte for byte")

	third := verifierSet(3, "")
	third.PrevHash = newest.Hash
	require.NoError(t, e.PutSet(ctx, third, operator))
	sets, err := e.SetsAfter(ctx, 1, 64)
	require.NoError(t, err)
	require.Equal(t, []trust.StoredSet{newest, third}, sets)
	sets, err = e.SetsAfter(ctx, 0, 1)
	require.NoError(t, err)
	require.Equal(t, []trust.StoredSet{verifierSet(1, "")}, sets)
	sets, err = e.SetsAfter(ctx, 3, 64)
	require.NoError(t, err)
	require.Empty(t, sets)
}

// The oldest set that verifies a task is found in the history, which the
// caller asks for at once.
func TestVerifierSetsAreNotCapped(t *testing.T) {
	e := setup(t)
	const sets = 70
	for v := range int64(sets) {
		require.NoError(t, e.PutSet(t.Context(), verifierSet(v+1, ""), operator))
	}
	history, err := e.SetsAfter(t.Context(), 0, sets)
	require.NoError(t, err)
	require.Len(t, history, sets)
}
