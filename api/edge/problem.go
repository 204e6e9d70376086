package edge

import (
	"mime"
	"net/http"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
)

// problemType is the media type of RFC 9457.
const problemType = "application/problem+json"

// problem is an error envelope as RFC 9457 problem details. The fields of the
// envelope that the RFC does not define are extension members.
type problem struct {
	Type          string      `json:"type"`
	Title         string      `json:"title"`
	Status        int         `json:"status"`
	Detail        string      `json:"detail"`
	Code          schema.Kind `json:"code"`
	Reason        string      `json:"reason,omitempty"`
	Next          string      `json:"next,omitempty"`
	CorrelationID string      `json:"correlation_id"`
}

// problemOf converts an envelope. The type about:blank means that the title is the
// text of the HTTP status (RFC 9457, 4.2.1); the code identifies the error.
func problemOf(status int, e schema.ErrorDetail) problem {
	return problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: e.Message,
		Code: e.Code, Reason: e.Reason, Next: e.Next, CorrelationID: e.CorrelationID}
}

// wantsProblem reports whether the client asks for problem details.
func wantsProblem(h http.Header) bool {
	for _, accept := range h.Values("Accept") {
		for t := range strings.SplitSeq(accept, ",") {
			if m, _, err := mime.ParseMediaType(t); err == nil && m == problemType {
				return true
			}
		}
	}
	return false
}
