package postgres

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/gpuaas/gpuaas/schema"
)

// faults says how a database is unavailable, by the beginning of the SQLSTATE. The
// first match applies.
//
//nolint:gochecknoglobals // read-only table
var faults = []struct{ state, fault, next string }{
	{"53100", "has a full disk", "free disk space on the server of the database"},
	{"08", transient, ""},    // connection trouble
	{"53", transient, ""},    // insufficient resources
	{"57P", transient, ""},   // shutdown
	{"57014", transient, ""}, // statement timeout
	{lockNotAvailable, transient, ""},
	{"25P03", transient, ""}, // idle transaction timeout
	{"40", transient, ""},    // a lost race
	{undefinedTable, unsuitable, setup},
	{undefinedColumn, unsuitable, setup},
	{"42883", unsuitable, setup},
	{"25006", "accepts no writes: it is a standby", nextReadOnly},
	{insufficientPrivilege, "denies its role a privilege that this version needs", setup},
}

// insufficientPrivilege is the SQLSTATE of a statement that the role may not run.
const insufficientPrivilege = "42501"

// adminShutdown is the SQLSTATE with which a server that shuts down ends a connection. It rolls
// the statement back that receives it.
const adminShutdown = "57P01"

// lockNotAvailable is the SQLSTATE of a statement that did not get a lock in time.
const lockNotAvailable = "55P03"

// undefinedTable is the SQLSTATE of a statement that names a table that does not exist.
const undefinedTable = "42P01"

// undefinedColumn is the SQLSTATE of a statement that names a column that does not exist.
const undefinedColumn = "42703"

const (
	transient  = "is temporarily unavailable"
	unsuitable = "has no schema for this version"
	setup      = "gpuaas admin setup"
)

// Interpret gives a driver's error its kind and a message that names the call
// and the database's address, never a credential. Errors that have a kind pass.
func (db *DB) Interpret(err error, doing string) error {
	if err == nil {
		return nil
	}
	if _, typed := errors.AsType[*schema.Error](err); typed {
		return err
	}
	if loginRejected(err) {
		return schema.Wrap(schema.KindServiceUnavailable, err, "%s: the database at %s rejects the role or its password", doing, db.address).
			WithReason("database_login").WithNext("correct the database URL of this program, or its file")
	}
	if unreachable(err) {
		return schema.Wrap(schema.KindServiceUnavailable, err, "%s: the database at %s does not respond", doing, db.address)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return schema.Wrap(schema.KindNotFound, err, "%s: not found", doing)
	}
	e, _ := errors.AsType[*pgconn.PgError](err)
	if e == nil {
		return schema.Wrap(schema.KindInternal, err, "%s", doing)
	}
	for _, f := range faults {
		if strings.HasPrefix(e.Code, f.state) {
			return schema.Wrap(schema.KindServiceUnavailable, e, "%s: the database at %s %s", doing, db.address, f.fault).WithNext(f.next)
		}
	}
	return db.interpretRefusal(e, doing)
}

// interpretRefusal handles malformed values and violated constraints.
func (db *DB) interpretRefusal(e *pgconn.PgError, doing string) error {
	r, known := db.refusals[e.ConstraintName]
	switch {
	case known:
	case slices.Contains([]string{"22P02", "22P05", "22021"}, e.Code):
		r = Refusal{"", doing + ": a value is malformed"}
	case e.Code == "23514":
		r = Refusal{e.ConstraintName, doing + ": a value violates a check"}
	default:
		return schema.Wrap(schema.KindInternal, e, "%s", doing)
	}
	return schema.Wrap(schema.KindInvalidRequest, e, "%s", r.Message).WithReason(r.Reason)
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

// NotFound reports whether a query found no row.
func NotFound(err error) bool { return errors.Is(err, pgx.ErrNoRows) }

// Violates reports whether err is a violation of the named constraint.
func Violates(err error, constraint string) bool {
	pe, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pe.ConstraintName == constraint
}
