package postgres

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

// Interpret gives a driver's error its kind and a message that names the call
// and the database's address, never a credential. Errors that have a kind pass.
func (db *DB) Interpret(err error, doing string) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*schema.Error](err); ok {
		return err
	}
	if unreachable(err) {
		return schema.Wrap(schema.KindServiceUnavailable, err, "%s: the database at %s does not respond", doing, db.address)
	}
	if pe, ok := errors.AsType[*pgconn.PgError](err); ok {
		return db.interpretServerError(pe, doing)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return schema.Wrap(schema.KindNotFound, err, "%s: not found", doing)
	}
	return schema.Wrap(schema.KindInternal, err, "%s", doing)
}

// unreachable reports whether the client failed to reach the server: no
// connection, a lost one, or no response in time.
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

// interpretServerError maps the server's SQLSTATE to a kind.
func (db *DB) interpretServerError(e *pgconn.PgError, doing string) error {
	switch {
	case e.Code == "53100":
		return schema.Wrap(schema.KindServiceUnavailable, e, "%s: the disk of the database at %s is full", doing, db.address)
	case transient(e.Code):
		return schema.Wrap(schema.KindServiceUnavailable, e, "%s: the database at %s is temporarily unavailable", doing, db.address)
	case e.Code == "42P01" || e.Code == "42703" || e.Code == "42883" || e.Code == "25006":
		return schema.AsError(schema.Wrap(schema.KindServiceUnavailable, e,
			"%s: the database at %s has no schema for this version, or is a replica", doing, db.address)).
			WithNext("gpuaas admin setup")
	case e.Code == "22P02" || e.Code == "22P05" || e.Code == "22021":
		return schema.Wrap(schema.KindInvalidRequest, e, "%s: a value is malformed", doing)
	case strings.HasPrefix(e.Code, "23"):
		return db.interpretConstraint(e, doing)
	}
	return schema.Wrap(schema.KindInternal, e, "%s", doing)
}

// transient reports whether the SQLSTATE is worth a retry: connection trouble
// (08), insufficient resources (53), shutdown (57P), a timeout (57014, 55P03,
// 25P03) or a lost race (40).
func transient(code string) bool {
	for _, prefix := range []string{"08", "53", "57P", "57014", "55P03", "25P03", "40"} {
		if strings.HasPrefix(code, prefix) {
			return true
		}
	}
	return false
}

// interpretConstraint turns the violation of a known constraint into its
// refusal.
func (db *DB) interpretConstraint(e *pgconn.PgError, doing string) error {
	r, known := db.refusals[e.ConstraintName]
	switch {
	case known:
	case e.Code == "23514":
		r = Refusal{e.ConstraintName, doing + ": a value violates a check"}
	default:
		return schema.Wrap(schema.KindInternal, e, "%s", doing)
	}
	refused := schema.NewError(schema.KindInvalidRequest, "%s", r.Message).WithReason(r.Reason)
	refused.Err = e
	return refused
}

// NotFound reports whether a query found no row.
func NotFound(err error) bool { return errors.Is(err, pgx.ErrNoRows) }

// Violates reports whether err is a violation of the named constraint.
func Violates(err error, constraint string) bool {
	pe, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pe.ConstraintName == constraint
}
