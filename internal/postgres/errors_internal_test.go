package postgres

import (
	"errors"
	"io"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

func TestInterpret(t *testing.T) {
	t.Parallel()
	state := func(code string) error { return &pgconn.PgError{Code: code, Message: "m"} }
	for _, c := range []struct {
		err  error
		kind schema.Kind
	}{
		{nil, ""},
		{schema.NewError(schema.KindFenced, "x"), schema.KindFenced},
		{io.ErrUnexpectedEOF, schema.KindServiceUnavailable},
		{pgx.ErrTxCommitRollback, schema.KindServiceUnavailable},
		{pgx.ErrNoRows, schema.KindNotFound},
		{errors.New("x"), schema.KindInternal},
		{state("57P01"), schema.KindServiceUnavailable}, // admin shutdown
		{state("57014"), schema.KindServiceUnavailable}, // statement timeout
		{state("53300"), schema.KindServiceUnavailable}, // too many connections
		{state("53100"), schema.KindServiceUnavailable}, // disk full
		{state("40001"), schema.KindServiceUnavailable}, // serialization
		{state("40P01"), schema.KindServiceUnavailable}, // deadlock
		{state("55P03"), schema.KindServiceUnavailable}, // lock timeout
		{state("08006"), schema.KindServiceUnavailable},
		{state("25006"), schema.KindServiceUnavailable}, // a replica
		{state("22P02"), schema.KindInvalidRequest},
		{state("23505"), schema.KindInternal},
		{state("23514"), schema.KindInvalidRequest},
		{state("XX000"), schema.KindInternal},
	} {
		err := (&DB{address: "db.example:5432/gpuaas"}).Interpret(c.err, "doing it")
		require.Equal(t, c.kind, schema.KindOf(err), "%v", c.err)
		if c.kind == schema.KindServiceUnavailable {
			require.ErrorContains(t, err, "doing it: the ")
			require.ErrorContains(t, err, "db.example:5432/gpuaas")
			require.ErrorIs(t, err, c.err)
		}
	}
	require.ErrorContains(t, (&DB{}).Interpret(state("53100"), "b"), "disk")
}
