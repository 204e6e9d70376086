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
const probeBudget = 2 * time.Second

// probe answers nil when a part does its work, or what it says instead.
type probe func(ctx context.Context) error

// send makes one request on a connection of its own. Its error leaves out the
// URL, which is shown beside it.
func send(t *http.Transport, req *http.Request) (*http.Response, error) {
	t.DisableKeepAlives = true
	resp, err := (&http.Client{Transport: t}).Do(req)
	if broken, ok := errors.AsType[*url.Error](err); ok {
		err = broken.Err
	}
	return resp, err
}

// get wants a 2xx from a URL.
func get(address string) probe {
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
		if err != nil {
			return err
		}
		resp, err := send(&http.Transport{}, req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode/100 == 2 {
			return nil
		}
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 200)) // what there is of an explanation
		return fmt.Errorf("it answers %s %s", resp.Status, strings.Join(strings.Fields(string(body)), " "))
	}
}

// grpcServing asks a gRPC server by the standard health protocol whether it
// serves Temporal's API. One message of two bytes each way does not need a
// gRPC library.
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
		serving := []byte{0, 0, 0, 0, 2, 0x08, 1} // a frame of: field 1 is SERVING
		if !bytes.Equal(body, serving) {
			status := resp.Trailer.Get("Grpc-Status") + resp.Header.Get("Grpc-Status")
			return fmt.Errorf("it is not serving yet (gRPC status %s)", status)
		}
		return nil
	}
}

// dialable wants a TCP connection, where no more is known of the server.
func dialable(address string) probe {
	return func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err == nil {
			conn.Close()
		}
		return err
	}
}

// acceptsSessions asks a Postgres server, as pg_isready does, whether it takes
// sessions: it opens one and goes away when it is asked for a password.
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
		answer := make([]byte, 512)
		n, err := conn.Read(answer)
		if n == 0 {
			return errors.Join(errors.New("it closes the connection"), err)
		}
		// Only "the database system is starting up" and its kin, code 57P03,
		// mean not yet; any other refusal comes from a server that is up.
		if answer[0] == 'E' && bytes.Contains(answer[:n], []byte("57P03")) {
			return errors.New("it is starting up")
		}
		return nil
	}
}
