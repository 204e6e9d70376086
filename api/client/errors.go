package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// maxResponse bounds the size of one response.
const maxResponse = 16 << 20

// Error is an unsuccessful response, or that there was none. errors.As also finds the *schema.Error
// in it, and errors.Is compares with a &schema.Error{Kind: …}.
type Error struct {
	// Status is the HTTP status; 0 without a response.
	Status int
	// Code identifies the error, and Reason narrows it. A client decides by them, never by the
	// message. Without a response, they are service_unavailable and api_unreachable.
	Code    schema.Kind
	Reason  string
	Message string
	// Next is the command or action that resolves the error; often empty.
	Next string
	// CorrelationID names the request in the log of the server; empty without a response.
	CorrelationID string

	cause error
}

// ReasonUnreachable is the reason of an Error without a response.
const ReasonUnreachable = "api_unreachable"

// Error returns the message, the code and the correlation ID.
func (e *Error) Error() string {
	text := fmt.Sprintf("%s (%s)", e.Message, e.Code)
	if e.CorrelationID != "" {
		text += ", correlation ID " + e.CorrelationID
	}
	return text
}

// Unwrap returns the *schema.Error with the same content.
func (e *Error) Unwrap() error {
	return &schema.Error{Kind: e.Code, Reason: e.Reason, Message: e.Message, Next: e.Next, Err: e.cause}
}

// unreachable is the error of a request without a response. A context that ended is the cause.
func unreachable(r *http.Request, err error) error {
	if cause := r.Context().Err(); cause != nil {
		return cause
	}
	if inner := errors.Unwrap(err); inner != nil {
		err = inner // without the URL, which the message has
	}
	return &Error{Code: schema.KindServiceUnavailable, Reason: ReasonUnreachable, cause: err,
		Message: fmt.Sprintf("the admin API at %s does not respond: %s", r.URL.Host, err)}
}

// errorOf returns the error that a response contains, or one with its status.
func errorOf(res *http.Response) error {
	e := &Error{Status: res.StatusCode, Code: schema.KindInternal, CorrelationID: res.Header.Get(wire.HeaderCorrelationID),
		Message: fmt.Sprintf("the admin API at %s answered %s", res.Request.URL.Host, res.Status)}
	if res.StatusCode > http.StatusInternalServerError { // a proxy without its server
		e.Code = schema.KindServiceUnavailable
	}
	var body schema.ErrorBody
	if json.NewDecoder(io.LimitReader(res.Body, maxResponse)).Decode(&body) == nil && body.Error.Code != "" {
		d := body.Error
		e.Code, e.Reason, e.Message, e.Next, e.CorrelationID = d.Code, d.Reason, d.Message, d.Next, d.CorrelationID
	}
	return e
}

// Decode reads the response of a call of the generated client, at most 16 MiB, and closes it.
func Decode[T any](res *http.Response, err error) (T, error) {
	var v T
	if err != nil {
		return v, err
	}
	defer res.Body.Close()
	if err := json.NewDecoder(io.LimitReader(res.Body, maxResponse)).Decode(&v); err != nil {
		return v, unreadable(res.Request, err)
	}
	return v, nil
}

// unreadable is the error of a response that was not received as a whole, or that is no JSON.
func unreadable(r *http.Request, err error) error {
	if _, ok := errors.AsType[net.Error](err); ok || r.Context().Err() != nil {
		return unreachable(r, err)
	}
	return schema.Wrap(schema.KindInternal, err, "the response of the admin API at %s cannot be parsed", r.URL.Host)
}
