package nodeapi

import (
	"encoding/base64"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Whatever a query says, it is refused with a reason or read into bounds.
func FuzzParsePoll(f *testing.F) {
	good := "timeout=55s&have=" + schema.NewID() + "&nonce=AAAAAAAAAAAAAAAAAAAAAA&holder=boot-1700000000&set=3&number=7"
	for _, seed := range []string{good, "", "timeout=-1s", strings.Replace(good, "set=3", "set=-3", 1),
		strings.Replace(good, "boot", "b%00t", 1), strings.Replace(good, "AAAA", "AA+A", 1), good + "&set=4", "have=,,,&" + good,
		strings.Replace(good, "55s", "9223372036854775807ns", 1), strings.Replace(good, "55s", "1e9h", 1)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, query string) {
		q, err := url.ParseQuery(query)
		if err != nil {
			t.Skip()
		}
		p, err := parsePoll(q)
		if err != nil {
			e := schema.AsError(err)
			require.Equal(t, schema.KindInvalidRequest, e.Kind)
			require.Contains(t, []string{"bad_query", "bad_timeout", "bad_have", "bad_nonce", "bad_holder", "bad_set", "bad_number"}, e.Reason)
			return
		}
		require.True(t, p.timeout >= 0 && p.timeout <= wire.MaxPollTimeout)
		require.LessOrEqual(t, len(p.ask.Have), maxHave)
		for _, id := range p.ask.Have {
			require.True(t, schema.IsID(id))
		}
		raw, err := base64.RawURLEncoding.DecodeString(p.ask.Nonce)
		require.NoError(t, err)
		require.Len(t, raw, nonceBytes)
		require.Equal(t, p.ask.Nonce, base64.RawURLEncoding.EncodeToString(raw))
		require.True(t, len(p.ask.Holder) > 0 && len(p.ask.Holder) <= maxHolder)
		require.GreaterOrEqual(t, p.set, int64(0))
	})
}
