package main

import (
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/testkit/need"
)

func TestNumber(t *testing.T) {
	t.Parallel()
	dpkg := need.Program(t, "dpkg", "use Debian or Ubuntu")
	at := time.Date(2026, 11, 28, 22, 0, 0, 0, time.UTC)
	before := "0"
	for _, c := range []struct{ described, want string }{
		{"4d5c4bef", "0.0.0~git.20261128220000.4d5c4bef"},
		{"v0.1.0-rc.1", "0.1.0~rc.1"},
		{"v0.1.0-rc.1-3-g4d5c4bef", "0.1.0~rc.1+3.g4d5c4bef"},
		{"v0.1.0", "0.1.0"},
		{"v0.1.0-dirty", "0.1.0+dirty"},
		{"v0.1.1", "0.1.1"},
		{"v0.1.1-12-g4d5c4bef", "0.1.1+12.g4d5c4bef"},
		{"v0.1.1-12-g4d5c4bef-dirty", "0.1.1+12.g4d5c4bef.dirty"},
		{"v0.2.0", "0.2.0"},
	} {
		got := number(c.described, at)
		require.Equal(t, c.want, got)
		require.NoError(t, exec.Command(dpkg, "--compare-versions", before, "lt", got).Run(), "%s must sort before %s", before, got)
		before = got
	}
}
