package nodeapi

import (
	"context"
	"io"
	"net/http"

	"github.com/gpuaas/gpuaas/schema"
)

// Package downloads a binary of the agent: size bytes whose SHA-256 should be the given one,
// which the caller verifies. ctx bounds the download.
func (c *Client) Package(ctx context.Context, sha256 string, size int64) ([]byte, error) {
	req, err := c.request(ctx, call{method: http.MethodGet})
	if err != nil {
		return nil, err
	}
	req.URL.Path = "/internal/v1/packages/sha256:" + sha256
	res, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswerBytes))
		if err != nil {
			return nil, c.unreachable(err)
		}
		return nil, refusal(res, body)
	}
	data := make([]byte, size)
	if n, err := io.ReadFull(res.Body, data); err != nil {
		return nil, schema.Wrap(schema.KindServiceUnavailable, err, "the download ended after %d of %d bytes", n, size)
	}
	if n, _ := io.ReadFull(res.Body, make([]byte, 1)); n > 0 {
		return nil, schema.NewError(schema.KindServiceUnavailable, "the download is larger than %d bytes", size)
	}
	return data, nil
}
