// Package schema imports what it must not.
package schema

import (
	"github.com/jackc/pgx/v5"     // want: depguard
	"go.temporal.io/sdk/temporal" // want: depguard
)

// ID is used by the importers.
const ID = "schema"

// Unused returns something of each import.
func Unused() (pgx.TxIsoLevel, temporal.RetryPolicy) {
	return pgx.Serializable, temporal.RetryPolicy{}
}
