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

// errorsPage is the page that describes the codes. Each code is an anchor of it.
const errorsPage = "https://github.com/gpuaas/gpuaas/blob/main/docs/reference/errors.md"

// problemOf converts an envelope. The type is the address of the code's description, and the title what the
// code means.
func problemOf(status int, e schema.ErrorDetail) problem {
	return problem{Type: errorsPage + "#" + string(e.Code), Title: e.Code.Info().Means, Status: status, Detail: e.Message,
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
