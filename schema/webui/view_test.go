package webui_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/webui"
)

// TestViews: a parked operation is in the list of the party that must act, whatever it
// waits on.
func TestViews(t *testing.T) {
	t.Parallel()
	for _, a := range []lifecycle.Attention{
		lifecycle.AttentionOperator, lifecycle.AttentionAgent, lifecycle.AttentionProvider, lifecycle.AttentionCompensation,
	} {
		var queries []string
		for _, v := range webui.Views() {
			if v.Title == "waiting on "+string(a) {
				queries = append(queries, v.Query)
			}
		}
		require.Len(t, queries, 1, a)
		require.True(t, strings.HasSuffix(queries[0], ` AND Attention = "`+string(a)+`"`), queries[0])
	}
}
