package workload

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRestartDelay(t *testing.T) {
	t.Parallel()
	require.Equal(t, 2*time.Second, restartDelay(1))
	require.Equal(t, time.Minute, restartDelay(1<<62))
}
