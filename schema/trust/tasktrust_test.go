package trust

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

func someTrust() TaskTrust {
	key, old := make([]byte, 32), bytes.Repeat([]byte{1}, 32)
	return TaskTrust{
		Keys:  VerifierKeys{{State: KeyActive, KeyID: "task-v2", Public: key}, {State: KeyGrace, KeyID: "task-v1", Public: old}},
		Roots: VerifierKeys{{State: KeyRoot, KeyID: "root-v1", Public: key}},
		Floor: VerifierSetRef{Version: 7, Hash: strings.Repeat("ab", 32)},
	}
}

func TestTaskTrust(t *testing.T) {
	t.Parallel()
	want := someTrust()
	got, err := ParseTaskTrust(want.String())
	require.NoError(t, err)
	require.Equal(t, want, got)

	plain, err := ParseTaskTrust(want.Keys.String())
	require.NoError(t, err)
	require.Empty(t, plain.Roots)
	require.Zero(t, plain.Floor)

	root := ",root:root-v1:" + strings.Split(want.Keys.String(), ":")[2][:44]
	for name, bad := range map[string]string{
		"no key":            root[1:],
		"a root twice":      want.String() + root,
		"two floors":        want.String() + ",floor:8:" + want.Floor.Hash,
		"a short hash":      want.Keys.String() + ",floor:8:ab",
		"an upper-case one": want.Keys.String() + ",floor:8:" + strings.ToUpper(want.Floor.Hash),
		"version 0":         want.Keys.String() + ",floor:0:" + want.Floor.Hash,
		"a short root key":  want.Keys.String() + ",root:r:AAAA",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ParseTaskTrust(bad)
			require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err))
		})
	}
}

func FuzzParseTaskTrust(f *testing.F) {
	f.Add(someTrust().String())
	f.Add("floor:1:" + strings.Repeat("0", 64))
	f.Add("active:k:x,grace:l:y")
	f.Fuzz(func(t *testing.T, s string) {
		trusted, err := ParseTaskTrust(s)
		if err != nil {
			require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err))
			return
		}
		again, err := ParseTaskTrust(trusted.String())
		require.NoError(t, err)
		require.Equal(t, trusted, again)
	})
}
