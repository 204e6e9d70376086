package client

import (
	"context"
	"net/http"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/gpuaas/gpuaas/schema/wire"
)

// retries say how often, and after which pauses, a request is sent again. A Retry-After of the
// response replaces the pause.
type retries struct {
	max              int
	minPause, maxGap time.Duration
}

func defaultRetries() retries {
	return retries{max: 4, minPause: 500 * time.Millisecond, maxGap: 10 * time.Second}
}

// maxRetryAfter is the longest pause that the client waits. A response that asks for a longer one is
// returned.
const maxRetryAfter = time.Minute

// doer sends the requests of the generated client.
type doer struct {
	http      *retryablehttp.Client
	token     TokenSource
	userAgent string
}

func newDoer(c *http.Client, s settings) doer {
	r := retryablehttp.NewClient()
	r.HTTPClient, r.Logger = c, nil
	r.RetryMax, r.RetryWaitMin, r.RetryWaitMax = s.retry.max, s.retry.minPause, s.retry.maxGap
	r.CheckRetry, r.ErrorHandler = checkRetry, retryablehttp.PassthroughErrorHandler
	return doer{r, s.token, s.userAgent}
}

// Do sends a request with the token, and returns a response other than a success as an *Error.
func (d doer) Do(r *http.Request) (*http.Response, error) {
	token, err := d.token()
	if err != nil {
		return nil, err
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	r.Header.Set("User-Agent", d.userAgent)
	if r.Header.Get("Accept") == "" {
		r.Header.Set("Accept", "application/json")
	}
	if key, ok := r.Context().Value(keyOfCall{}).(string); ok && r.Method == http.MethodPost {
		r.Header.Set(wire.HeaderIdempotencyKey, key)
	}
	ctx := context.WithValue(r.Context(), repeatable{}, isRepeatable(r))
	again, err := retryablehttp.FromRequest(r.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	res, err := d.http.Do(again)
	if err != nil {
		return nil, unreachable(r, err)
	}
	if res.StatusCode < http.StatusMultipleChoices {
		return res, nil
	}
	defer res.Body.Close()
	return nil, errorOf(res)
}

// repeatable is the key of a context: whether the request may be sent again after it may have had
// its effect.
type repeatable struct{}

func isRepeatable(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodPut:
		return true
	}
	return r.Header.Get(wire.HeaderIdempotencyKey) != ""
}

// checkRetry reports whether a request is sent again. One that was rejected with 429 had no effect.
func checkRetry(ctx context.Context, res *http.Response, err error) (bool, error) {
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	if retryablehttp.DefaultBackoff(0, 0, 0, res) > maxRetryAfter {
		return false, nil
	}
	if err == nil && res.StatusCode == http.StatusTooManyRequests {
		return true, nil
	}
	if safe, _ := ctx.Value(repeatable{}).(bool); !safe {
		return false, nil
	}
	if err != nil { // not for an untrusted certificate or an invalid request
		return retryablehttp.DefaultRetryPolicy(ctx, res, err)
	}
	return res.StatusCode == http.StatusServiceUnavailable, nil
}
