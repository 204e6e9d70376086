package runner

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/task"
)

func TestTail(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ in, want string }{
		"short":                {"a\nb", "a\nb"},
		"nul and broken bytes": {"a\x00b\xffc", "a?b?c"},
		"cut in a character":   {strings.Repeat("é", task.MaxOutputTail/2) + "x", strings.Repeat("é", task.MaxOutputTail/2-1) + "x"},
	} {
		for _, size := range []int{1, 1000, len(c.in)} {
			w := &tail{}
			for in := c.in; in != ""; in = in[min(size, len(in)):] {
				_, err := w.Write([]byte(in[:min(size, len(in))]))
				require.NoError(t, err)
			}
			require.Equal(t, c.want, w.text(), "%s by %d", name, size)
		}
	}
	w := &tail{}
	fmt.Fprint(w, strings.Repeat("\xe2\x82", task.MaxOutputTail))
	require.True(t, utf8.ValidString(w.text()))
	require.LessOrEqual(t, len(w.text()), task.MaxOutputTail)
}
