package console

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"unicode"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// apiPath is the path of the admin API.
const apiPath = "/api/v1/admin"

// maxResponse is the largest response of the admin API that a page shows, and maxText the
// longest text in it, in characters.
const (
	maxResponse = 16 << 20
	maxText     = 4096
)

// fetch reads path?query of the admin API, below /api/v1/admin, as the subject of the request.
// What is not printable in it is replaced, and long texts are cut. Errors are those of the API.
func fetch[T any](r *request, path string, query url.Values) (v T, err error) {
	body, err := r.console.call(r.Context(), apiCall{by: r.Subject, of: r.Request, method: http.MethodGet, target: withQuery(path, query)})
	if err == nil {
		err = decodeClean(body, &v)
	}
	return v, err
}

// fetchShared is fetch for data that is the same for every subject: however many pages need it, it is
// read once in readEvery. A page that the script reads again gets no data from before the change
// for which it does; another one gets data of at most keptTime. Pages share the value and must not
// change it.
func fetchShared[T any](r *request, path string, query url.Values) (T, error) {
	return fetchKept[T](r, path, query, atMostKept)
}

// fetchRecent is fetchShared for the page of one node or operation: its data is at most readEvery old.
func fetchRecent[T any](r *request, path string, query url.Values) (T, error) {
	return fetchKept[T](r, path, query, atMostRecent)
}

func fetchKept[T any](r *request, path string, query url.Values, fresh freshness) (v T, err error) {
	if r.Region {
		fresh = afterChange
	}
	target := withQuery(path, query)
	kept, err := r.console.reads.get(r.Context(), target, fresh, func(ctx context.Context, target string) ([]byte, error) {
		return r.console.call(ctx, apiCall{by: service(), method: http.MethodGet, target: target})
	})
	if err != nil {
		return v, err
	}
	r.shows(target, kept)
	kept.decoded.once.Do(func() { kept.decoded.value, kept.decoded.err = decode[T](kept.body) })
	if v, ok := kept.decoded.value.(T); ok {
		return v, kept.decoded.err
	}
	return decode[T](kept.body) // another page reads the same as another type
}

// decode is decodeClean for a value of a type.
func decode[T any](body []byte) (v T, err error) {
	err = decodeClean(body, &v)
	return v, err
}

// submit sends body to path of the admin API as the subject of the request, with an idempotency
// key: a second request with the key has the effect and the response of the first.
func submit[T any](r *request, path string, body any, key string) (v T, err error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return v, schema.Wrap(schema.KindInternal, err, "encoding a request")
	}
	response, err := r.console.call(r.Context(), apiCall{by: r.Subject, of: r.Request, method: http.MethodPost, target: path, body: raw, key: key})
	if err == nil {
		r.console.reads.change()
		err = decodeClean(response, &v)
	}
	return v, err
}

func withQuery(path string, query url.Values) string {
	if len(query) == 0 {
		return path
	}
	return path + "?" + query.Encode()
}

// apiCall is a request of the admin API.
type apiCall struct {
	by             Subject
	of             *http.Request // the browser's request, nil for none
	method, target string
	body           []byte // JSON, nil for none
	key            string // the idempotency key, empty for none
}

// call makes a request of the admin API.
func (c *Console) call(ctx context.Context, a apiCall) ([]byte, error) {
	r, err := http.NewRequestWithContext(withSubject(ctx, a.by), a.method, "http://console"+apiPath+a.target, bytes.NewReader(a.body))
	if err != nil {
		return nil, schema.Wrap(schema.KindInvalidRequest, err, "the address is not valid")
	}
	if a.body == nil {
		r.Body, r.ContentLength = http.NoBody, 0
	} else {
		r.Header.Set("Content-Type", "application/json")
	}
	if a.key != "" {
		r.Header.Set(wire.HeaderIdempotencyKey, a.key)
	}
	if a.of != nil {
		r.RemoteAddr = a.of.RemoteAddr
	}
	if id := edge.CorrelationID(ctx); id != "" {
		r.Header.Set(wire.HeaderCorrelationID, id)
	}
	response, err := c.cfg.API.RoundTrip(r)
	if err != nil {
		return nil, schema.Wrap(schema.KindServiceUnavailable, err, "the admin API does not respond")
	}
	defer func() { _ = response.Body.Close() }() // it is read
	text, err := io.ReadAll(io.LimitReader(response.Body, maxResponse))
	switch {
	case err != nil:
		return nil, schema.Wrap(schema.KindServiceUnavailable, err, "reading the response of the admin API")
	case response.StatusCode < http.StatusBadRequest:
		return text, nil
	}
	return nil, errorOf(text)
}

// errorOf returns the error in an error envelope.
func errorOf(text []byte) error {
	var e schema.ErrorBody
	if err := decodeClean(text, &e); err != nil || e.Error.Code == "" {
		return schema.NewError(schema.KindInternal, "the admin API responded without an error code")
	}
	return e.AsError()
}

// decodeClean decodes JSON and makes each text in it fit for a page. Nodes and operators wrote
// parts of them.
func decodeClean(raw []byte, v any) error {
	if err := json.Unmarshal(raw, v); err != nil {
		return schema.Wrap(schema.KindInternal, err, "the response of the admin API cannot be read")
	}
	cleanValue(reflect.ValueOf(v).Elem())
	return nil
}

// cleanValue replaces the texts in a value.
func cleanValue(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if s := v.String(); !plain(s) && v.CanSet() {
			v.SetString(printable(s))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			cleanValue(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				cleanValue(v.Field(i))
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return
		}
		for i := range v.Len() {
			cleanValue(v.Index(i))
		}
	case reflect.Map:
		cleanMap(v)
	case reflect.Interface:
		if v.IsNil() || !v.CanSet() {
			return
		}
		inner := reflect.New(v.Elem().Type()).Elem()
		inner.Set(v.Elem())
		cleanValue(inner)
		v.Set(inner)
	}
}

// cleanMap replaces the texts in the keys and values of a map.
func cleanMap(m reflect.Value) {
	for _, key := range m.MapKeys() {
		k, v := reflect.New(key.Type()).Elem(), reflect.New(m.Type().Elem()).Elem()
		k.Set(key)
		v.Set(m.MapIndex(key))
		cleanValue(k)
		cleanValue(v)
		m.SetMapIndex(key, reflect.Value{})
		m.SetMapIndex(k, v)
	}
}

// plain reports whether a text is short and printable ASCII.
func plain(s string) bool {
	if len(s) > maxText {
		return false
	}
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// printable returns a text in which each character can be seen: control characters and those
// that change the direction of text become a question mark. Line breaks stay.
func printable(s string) string {
	s = strings.ToValidUTF8(s[:min(len(s), 4*maxText)], "?")
	runes := []rune(strings.Map(func(r rune) rune {
		switch {
		case r == '\n':
			return r
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsGraphic(r):
			return '?'
		}
		return r
	}, s))
	if len(runes) > maxText {
		return string(runes[:maxText-1]) + "…"
	}
	return string(runes)
}
