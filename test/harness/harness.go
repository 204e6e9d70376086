// Package harness has the parts that the test harnesses of several packages share.
package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
)

// Buffer is a buffer that a test may read while a program writes its log to it. Its
// zero value is ready for use.
type Buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String returns everything that was written.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Response is a response with its whole body.
type Response struct {
	Request *http.Request
	Status  int
	Proto   int // the major version of HTTP
	Header  http.Header
	Body    []byte
}

// Do sends a request and reads the whole response body. A body that is neither nil
// nor a string is sent as JSON. headers are names, spelled as they are sent, and
// values in turn.
func Do(ctx context.Context, c *http.Client, method, url string, body any, headers ...string) (Response, error) {
	var reader io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		reader = bytes.NewReader([]byte(b))
	default:
		text, err := json.Marshal(b)
		if err != nil {
			return Response{}, err
		}
		reader = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, reader)
	if err != nil {
		return Response{}, err
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header[headers[i]] = append(req.Header[headers[i]], headers[i+1])
	}
	res, err := c.Do(req)
	if err != nil {
		return Response{}, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	return Response{req, res.StatusCode, res.ProtoMajor, res.Header, text}, err
}
