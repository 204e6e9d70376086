package nodeapi

import (
	"encoding/base64"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const (
	defaultPoll = 55 * time.Second
	maxHave     = 64
	maxHolder   = 128
	// nonceBytes is the size of a poll's nonce, before its base64url.
	nonceBytes = 16
)

// poll is what a wait request asks for.
type poll struct {
	timeout time.Duration
	ask     PollRequest
	// set is the version of the verifier set that the node judges tasks with.
	set int64
}

// parsePoll reads a wait request's query. Every parameter may be given once.
func parsePoll(q url.Values) (poll, error) {
	p := poll{timeout: defaultPoll}
	for _, name := range []string{"timeout", "have", "nonce", "holder", "set", "number"} {
		if len(q[name]) > 1 {
			return p, badQuery("bad_query", "%s may be given once", name)
		}
	}
	if q.Has("timeout") {
		d, err := time.ParseDuration(q.Get("timeout"))
		if err != nil || d < 0 {
			return p, badQuery("bad_timeout", "timeout must be a duration such as 55s")
		}
		p.timeout = min(d, wire.MaxPollTimeout)
	}
	var err error
	if p.ask.Have, err = parseHave(q.Get("have")); err != nil {
		return p, err
	}
	if p.ask.Nonce = q.Get("nonce"); !isNonce(p.ask.Nonce) {
		return p, badQuery("bad_nonce", "nonce must be %d random bytes in base64url, new for each poll", nonceBytes)
	}
	if p.ask.Holder = q.Get("holder"); !isHolder(p.ask.Holder) {
		return p, badQuery("bad_holder", "holder must name the agent's process in 1 to %d of A-Z a-z 0-9 . _ -", maxHolder)
	}
	if q.Has("number") {
		if p.ask.Number, err = parseVersion(q.Get("number")); err != nil {
			return p, badQuery("bad_number", "number must count the polls of the agent's process")
		}
	}
	if q.Has("set") {
		p.set, err = parseVersion(q.Get("set"))
		if err != nil {
			return p, badQuery("bad_set", "set must be the version of the node's verifier set, 0 for none")
		}
	}
	return p, nil
}

func parseHave(text string) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	have := strings.Split(text, ",")
	if len(have) > maxHave {
		return nil, badQuery("bad_have", "have lists more than %d tasks", maxHave)
	}
	for _, id := range have {
		if !schema.IsID(id) {
			return nil, badQuery("bad_have", "have must list task ids")
		}
	}
	return have, nil
}

// isNonce takes the one spelling of 16 bytes: another one of the same bytes
// would not be what the agent compares with.
func isNonce(s string) bool {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(s)
	return err == nil && len(raw) == nonceBytes && base64.RawURLEncoding.EncodeToString(raw) == s
}

func isHolder(s string) bool {
	if s == "" || len(s) > maxHolder {
		return false
	}
	return strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r))
	}) < 0
}

// parseVersion reads a whole number from 0 as it is written without a sign or
// leading zeros.
func parseVersion(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, err
	}
	if n < 0 || strconv.FormatInt(n, 10) != s {
		return 0, strconv.ErrSyntax
	}
	return n, nil
}

func badQuery(reason, format string, args ...any) error {
	return schema.NewError(schema.KindInvalidRequest, format, args...).WithReason(reason)
}
