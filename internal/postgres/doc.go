// Package postgres connects to a Postgres database: a pool with call timeouts,
// transactions, errors with a kind, notifications and migrations. It has no
// table of its own; internal/store holds the schema and the domain.
package postgres
