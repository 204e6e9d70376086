package edge

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gpuaas/gpuaas/schema"
)

// Decode decodes the request body, exactly one JSON value of at most the route's
// MaxBody bytes (see schema.DecodeStrict). It also rejects invalid UTF-8 and the
// character U+0000, which the database cannot store. Its errors repeat nothing of
// the body, which may contain a token.
func Decode(r *http.Request, v any) error {
	_, err := DecodeRaw(r, v)
	return err
}

// DecodeRaw is Decode and also returns the body as sent, for callers that verify
// a signature over it.
func DecodeRaw(r *http.Request, v any) ([]byte, error) {
	data, err := read(r)
	if err != nil {
		return nil, err
	}
	return data, decode(r, data, v)
}

// DecodeOptional is Decode, but accepts an empty body and then leaves v unchanged.
func DecodeOptional(r *http.Request, v any) error {
	data, err := read(r)
	if err != nil || len(bytes.TrimSpace(data)) == 0 {
		return err
	}
	return decode(r, data, v)
}

// timedBody is a body that has a read deadline until its end. After it, a deadline would look like a
// disconnected client.
type timedBody struct {
	io.ReadCloser
	response *http.ResponseController
}

// Read implements io.Reader.
func (b timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		_ = b.response.SetReadDeadline(time.Time{}) // only a test's recorder does not support deadlines
	}
	return n, err
}

func read(r *http.Request) ([]byte, error) {
	data, err := io.ReadAll(r.Body)
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, tooLarge(recordOf(r.Context()).maxBody)
	}
	if err != nil {
		return nil, schema.NewError(schema.KindInvalidRequest, "the body is incomplete or was sent too slowly").WithReason("body_unreadable")
	}
	return data, nil
}

func tooLarge(limit int) error {
	return schema.NewError(schema.KindInvalidRequest, "the body has more than %d bytes", limit).WithReason("too_large")
}

func decode(r *http.Request, data []byte, v any) error {
	if !utf8.Valid(data) || bytes.Contains(data, []byte(`\u0000`)) && escapedNUL.Match(data) {
		return schema.NewError(schema.KindInvalidRequest, "the body contains invalid UTF-8 or the character U+0000").
			WithReason("bad_text")
	}
	err := schema.DecodeStrict(data, recordOf(r.Context()).maxBody, v)
	if err == nil {
		return nil
	}
	e := schema.AsError(err)
	return schema.NewError(schema.KindInvalidRequest, "%s%s", e.Message, fieldOf(e.Err)).WithReason("malformed_body")
}

// escapedNUL matches an escaped U+0000 in JSON text: the backslashes before it are
// escapes of one another.
var escapedNUL = regexp.MustCompile(`(?:^|[^\\])(?:\\\\)*\\u0000`)

// fieldOf names the field of a decoder's error, if the name looks like one of this
// API. The rest of the error may repeat the body.
func fieldOf(err error) string {
	if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && t.Field != "" {
		return ": field " + t.Field + " has the wrong type"
	}
	if err == nil {
		return ""
	}
	_, rest, _ := strings.Cut(err.Error(), `field "`)
	name, rest, ok := strings.Cut(rest, `"`)
	if !ok || !isFieldName(name) {
		return ""
	}
	if strings.Contains(rest, "twice") {
		return ": field " + name + " appears twice"
	}
	return ": unknown field " + name
}

// isFieldName excludes tokens, which have digits and are longer.
func isFieldName(s string) bool {
	return len(s) <= 40 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz_") == ""
}
