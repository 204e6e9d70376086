package nodeapi

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// While the database fails, the counts of more and more networks are merged, so that the
// next recording has no more rows than any other.
func TestRestoredRefusalsAreBounded(t *testing.T) {
	f := newRefusals(&Config{})
	start := time.Unix(1e9, 0)
	const rounds = 5
	for round := range rounds {
		held := f.held
		f.held = map[refusalKey]*RefusedRequests{}
		for i := range maxRefusalNetworks {
			network := fmt.Sprintf("10.%d.%d.0/24", round, i)
			at := start.Add(time.Duration(round) * time.Minute)
			f.held[refusalKey{"a", "r", network}] = &RefusedRequests{Network: network, Requests: 2, First: at, Last: at, RemoteAddr: network}
		}
		f.restore(held)
	}
	assert.Len(t, f.held, maxRefusalNetworks+1)
	sum := int64(0)
	for key, r := range f.held {
		sum += r.Requests
		assert.Equal(t, key.network, r.Network)
	}
	assert.Equal(t, int64(2*rounds*maxRefusalNetworks), sum)
	others := f.held[refusalKey{"a", "r", otherNetworks}]
	assert.Equal(t, start, others.First)
	assert.Contains(t, others.RemoteAddr, "10.0.")
}
