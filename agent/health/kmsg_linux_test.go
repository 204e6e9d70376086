package health

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/health/device"
	"github.com/gpuaas/gpuaas/test/testkit/need"
)

func TestParseKmsg(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.conf.BootedAt = b.at
	m := b.monitor()
	seq, e, ok := m.parseKmsg("4,812,1500000,-;" + fallenOff + "\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n")
	require.True(t, ok)
	require.Equal(t, int64(812), seq)
	require.Equal(t, device.KindXID, e.Kind)
	require.Equal(t, 79, e.Code)
	require.Equal(t, b.at.Add(1500*time.Millisecond), e.At)
	require.Equal(t, testBoot, e.BootID)

	seq, _, ok = m.parseKmsg("12,813,1500000,-;" + fallenOff)
	require.False(t, ok, "a program wrote it")
	require.Equal(t, int64(813), seq)
	for _, bad := range []string{"", "4,1,2", "x,1,2,-;m", "4;m"} {
		seq, _, ok = m.parseKmsg(bad)
		require.False(t, ok)
		require.Equal(t, int64(-1), seq, bad)
	}
}

// TestRealKmsg: the kernel's buffer is read once, up to its end.
func TestRealKmsg(t *testing.T) {
	t.Parallel()
	file, err := os.Open("/dev/kmsg")
	need.That(t, err == nil, "the kernel log cannot be read, run the test as root: %v", err)
	require.NoError(t, file.Close())
	b := newBench(t)
	b.conf.BootedAt = b.at
	m := b.monitor()
	first, err := m.readKmsg(t.Context(), lines{})
	require.NoError(t, err)
	require.Regexp(t, "^kmsg "+testBoot+" -?[0-9]+$", first.cursor)
	second, err := m.readKmsg(t.Context(), first)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(second.cursor, kmsgCursor+testBoot))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got, err := m.readKmsg(ctx, first)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, first.cursor, got.cursor, "nothing is skipped")
}
