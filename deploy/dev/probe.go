package dev

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// probeBudget bounds one probe.
const probeBudget = 5 * time.Second

// probe returns nil if a part works, and otherwise the reason.
type probe func(ctx context.Context) error

// send makes one request on a new connection. Its error omits the URL, which the
// caller prints.
func send(t *http.Transport, req *http.Request) (*http.Response, error) {
	t.DisableKeepAlives = true
	resp, err := (&http.Client{Transport: t}).Do(req)
	if broken, ok := errors.AsType[*url.Error](err); ok {
		err = broken.Err
	}
	return resp, err
}

// statusError is an HTTP response with another status than 2xx.
type statusError struct {
	code int
	text string // the status and the start of the body
}

// Error implements error.
func (e *statusError) Error() string { return "it returned " + e.text }

// get succeeds if a URL returns 2xx.
func get(address string) probe {
	return func(ctx context.Context) error {
		_, err := fetch(ctx, http.MethodGet, address, http.NoBody)
		return err
	}
}

// fetch makes one request and returns the body of the response. The error for a
// status other than 2xx is a *statusError.
func fetch(ctx context.Context, method, address string, body io.Reader) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, address, body)
	if err != nil {
		return nil, err
	}
	resp, err := send(&http.Transport{}, req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if resp.StatusCode/100 != 2 {
		text := resp.Status + " " + string(raw[:min(len(raw), 200)]) // a partial explanation is enough
		return nil, &statusError{resp.StatusCode, strings.Join(strings.Fields(text), " ")}
	}
	return raw, err
}

// grpcServing uses the standard gRPC health protocol to check that a server serves
// Temporal's API. The two small messages do not justify a gRPC library.
func grpcServing(address string) probe {
	const service = "temporal.api.workflowservice.v1.WorkflowService"
	message := append([]byte{0x0a, byte(len(service))}, service...) // field 1, a string
	frame := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
	frame = append(frame, message...)
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/grpc.health.v1.Health/Check", bytes.NewReader(frame))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/grpc")
		req.Header.Set("TE", "trailers")
		transport := &http.Transport{Protocols: new(http.Protocols)}
		transport.Protocols.SetUnencryptedHTTP2(true)
		resp, err := send(transport, req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		if err != nil {
			return err
		}
		serving := []byte{0, 0, 0, 0, 2, 0x08, 1} // a frame with field 1 = SERVING
		if !bytes.Equal(body, serving) {
			status := resp.Trailer.Get("Grpc-Status") + resp.Header.Get("Grpc-Status")
			return fmt.Errorf("not serving yet (gRPC status %s)", status)
		}
		return nil
	}
}

// dialable succeeds if a TCP connection can be opened.
func dialable(address string) probe {
	return func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err == nil {
			conn.Close()
		}
		return err
	}
}

// acceptsSessions checks, like pg_isready, whether a Postgres server accepts
// sessions: it opens one and closes it at the password prompt.
func acceptsSessions(address string) probe {
	body := []byte{0, 3, 0, 0} // protocol 3.0
	body = append(body, "user\x00gpuaas\x00database\x00gpuaas\x00\x00"...)
	startup := append(binary.BigEndian.AppendUint32(nil, uint32(len(body)+4)), body...)
	return func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		defer conn.Close()
		if deadline, ok := ctx.Deadline(); ok {
			if err := conn.SetDeadline(deadline); err != nil {
				return err
			}
		}
		if _, err := conn.Write(startup); err != nil {
			return err
		}
		reply := make([]byte, 512)
		n, err := conn.Read(reply)
		if n == 0 {
			return errors.Join(errors.New("it closed the connection"), err)
		}
		// Code 57P03 ("the database system is starting up" and similar) means not
		// yet. Any other error comes from a server that is up.
		if reply[0] == 'E' && bytes.Contains(reply[:n], []byte("57P03")) {
			return errors.New("starting up")
		}
		return nil
	}
}
