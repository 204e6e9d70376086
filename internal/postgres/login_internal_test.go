package postgres

import (
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

// A rejected login is not reported as a server that does not respond.
func TestInterpretRejectedLogin(t *testing.T) {
	t.Parallel()
	db := &DB{address: "db:5432"}
	err := schema.AsError(db.Interpret(&pgconn.PgError{Code: "28P01"}, "connecting"))
	require.Equal(t, schema.KindServiceUnavailable, err.Kind)
	require.Equal(t, "connecting: the database at db:5432 rejects the role or its password", err.Message)
	require.NotEmpty(t, err.Next)
}
