package store

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/gpuaas/gpuaas/schema"
)

// interpretError is the one place where errors of the driver get a kind. Errors
// that have one already pass. The message says what was being done and names
// the database's address, never a credential.
func interpretError(err error, address, doing string) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*schema.Error](err); ok {
		return err
	}
	if unreachable(err) {
		return schema.Wrap(schema.KindServiceUnavailable, err, "%s: the database at %s does not answer", doing, address)
	}
	if pe, ok := errors.AsType[*pgconn.PgError](err); ok {
		return interpretServerError(pe, address, doing)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return schema.Wrap(schema.KindNotFound, err, "%s: not found", doing)
	}
	return schema.Wrap(schema.KindInternal, err, "%s", doing)
}

// unreachable reports whether the failure lies between us and the server: no
// connection, a lost one, or no answer in time.
func unreachable(err error) bool {
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*pgconn.PgError](err); ok {
		return false
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	for _, known := range []error{context.Canceled, context.DeadlineExceeded, io.EOF, io.ErrUnexpectedEOF,
		net.ErrClosed, pgx.ErrTxCommitRollback} {
		if errors.Is(err, known) {
			return true
		}
	}
	return pgconn.SafeToRetry(err)
}

// interpretServerError sorts what the server says by its SQLSTATE.
func interpretServerError(e *pgconn.PgError, address, doing string) error {
	switch {
	case e.Code == "53100":
		return schema.Wrap(schema.KindServiceUnavailable, e, "%s: the disk of the database at %s is full", doing, address)
	case busy(e.Code):
		return schema.Wrap(schema.KindServiceUnavailable, e, "%s: the database at %s is not available now", doing, address)
	case e.Code == "42P01" || e.Code == "42703" || e.Code == "25006":
		return schema.AsError(schema.Wrap(schema.KindServiceUnavailable, e,
			"%s: the database at %s is not set up for this version, or is a replica", doing, address)).
			WithNext("gpuaas admin setup")
	case e.Code == "22P02" || e.Code == "22P05" || e.Code == "22021":
		return schema.Wrap(schema.KindInvalidRequest, e, "%s: a value is malformed", doing)
	case strings.HasPrefix(e.Code, "23"):
		return interpretConstraint(e, doing)
	}
	return schema.Wrap(schema.KindInternal, e, "%s", doing)
}

// busy reports whether the SQLSTATE is one that passes: connection trouble
// (08), out of a resource (53), shutdown (57P), cancelled by a timeout (57014,
// 55P03, 25P03) or a lost race (40).
func busy(code string) bool {
	for _, prefix := range []string{"08", "53", "57P", "57014", "55P03", "25P03", "40"} {
		if strings.HasPrefix(code, prefix) {
			return true
		}
	}
	return false
}

// interpretConstraint turns a violated constraint into a refusal by its name.
func interpretConstraint(e *pgconn.PgError, doing string) error {
	switch e.ConstraintName {
	case "nodes_host_live_key":
		return refusedBy(e, "host_taken", "another node that is not removed has this host name")
	case "nodes_sku_fkey":
		return refusedBy(e, "sku_unknown", "the SKU is not in the catalog")
	case "operations_pkey":
		return refusedBy(e, "duplicate_operation", "this operation id was used before")
	case "enrollment_tokens_pkey":
		return refusedBy(e, "duplicate_token", "this token was stored before")
	}
	if e.Code == "23514" {
		return refusedBy(e, e.ConstraintName, doing+": a value is not allowed here")
	}
	return schema.Wrap(schema.KindInternal, e, "%s", doing)
}

func refusedBy(cause error, reason, message string) error {
	e := schema.NewError(schema.KindInvalidRequest, "%s", message).WithReason(reason)
	e.Err = cause
	return e
}

// notFound reports whether a query found no row.
func notFound(err error) bool { return errors.Is(err, pgx.ErrNoRows) }

// violates reports whether err is a violation of the named constraint.
func violates(err error, constraint string) bool {
	pe, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pe.ConstraintName == constraint
}
