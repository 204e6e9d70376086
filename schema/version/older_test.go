package version

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOlder(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"v1.2.3", "v1.2.4", true},
		{"v1.9.0", "v1.10.0", true},
		{"v1.10.0", "v1.9.0", false},
		{"v1.2.3", "v1.2.3", false},
		{"v1.2.3-rc.1", "v1.2.3", true},
		{"v1.2.3", "v1.2.3-rc.1", false},
		{"v1.2.0-rc1", "v1.2.0", true},
		{"1.2.0-rc1", "1.2.0", true},
		{"v1.2.3-rc.1", "v1.2.3-rc.2", true},
		{"v1.2.3-rc.2", "v1.2.3-rc.1", false},
		{"v1.2.3-rc.9", "v1.2.3-rc.10", true},
		{"v1.2.3-alpha", "v1.2.3-alpha.1", true},
		{"v1.2.3-alpha.1", "v1.2.3-beta", true},
		{"v1.2.3-1", "v1.2.3-alpha", true},
		{"v1.2.3-rc.2", "v1.2.2", false},
		{"v1.2.3+5", "v1.2.4+4", true},
		{"v1.2.3+5", "v1.2.3+4", false},
		{"1.2.3", "v2.0.0", true},
		{"dev", "v1.2.3", false},
		{"v1.2", "v1.2.3", true}, // its patch version is 0
		{"v1.2.3", "dev", false},
	} {
		require.Equal(t, c.want, Older(c.a, c.b), "%s %s", c.a, c.b)
	}
}
