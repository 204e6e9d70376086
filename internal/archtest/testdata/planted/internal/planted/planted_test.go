package planted

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSleeps(t *testing.T) {
	time.Sleep(time.Millisecond) // want: forbidigo
	require.NotNil(t, Do)
}
