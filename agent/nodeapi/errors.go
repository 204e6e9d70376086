package nodeapi

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/apierror"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// refusal converts an unsuccessful answer into an error. Only the API's own envelope
// counts: a 404 of a proxy is not a "not found" of the API.
func refusal(res *http.Response, body []byte) error {
	var e schema.ErrorBody
	if err := json.Unmarshal(body, &e); err == nil && e.Error.Code != "" {
		return later(res, removal(res, e.AsError()))
	}
	hint := ""
	if res.StatusCode == http.StatusNotFound {
		hint = "; GPUAAS_API_URL may not route to the node API"
	}
	return later(res, schema.NewError(schema.KindServiceUnavailable, "answer %d is not in the node API's format%s", res.StatusCode, hint))
}

// removal adds the document that the answer carries for a removed node to its error.
func removal(res *http.Response, err error) error {
	text := res.Header.Get(wire.HeaderRemoval)
	document, decodeErr := base64.RawURLEncoding.DecodeString(text)
	if text == "" || decodeErr != nil || !apierror.IsRemoved(err) {
		return err
	}
	return apierror.RemovedError{Err: err, Document: document}
}

// maxRetryAfter bounds what one answer can ask for.
const maxRetryAfter = time.Hour

// later adds the answer's Retry-After, in seconds, to its error.
func later(res *http.Response, err error) error {
	s, parseErr := strconv.Atoi(res.Header.Get("Retry-After"))
	if parseErr != nil || s <= 0 {
		return err
	}
	return apierror.RetryError{Err: err, After: min(time.Duration(min(s, int(maxRetryAfter/time.Second)))*time.Second, maxRetryAfter)}
}

// unreachable describes why there was no answer. The network layers' errors contain
// addresses but no secrets, because tokens are sent only in bodies.
func (c *Client) unreachable(err error) error {
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		at := c.conf.Clock.Now()
		c.conf.Clock.doubt()
		return schema.Wrap(schema.KindServiceUnavailable, err,
			"the server's certificate is not valid at %s, the time here: nothing was sent; is this node's clock right?", text.FormatTime(at))
	case errors.As(err, &unknown) || errors.As(err, &host) || errors.As(err, &invalid):
		return schema.Wrap(schema.KindServiceUnavailable, err, "the server is not the one of GPUAAS_CA_BUNDLE_PATH; nothing was sent")
	}
	return schema.Wrap(schema.KindServiceUnavailable, err, "the node API does not answer")
}
