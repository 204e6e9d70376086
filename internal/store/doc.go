// Package store keeps what is true in Postgres: nodes, operations, tasks,
// tokens, certificates, the ledger, the outbox and the audit trail. It is the
// adapter behind activities.Records, activities.Tasks, activities.Ledger,
// nodeapi.Store, nodeapi.Wakes, adminapi.Store and relay.Outbox, whose comments
// are its contract.
//
// SQL lives in schema/migrations and schema/queries; internal/store/sqlc is
// generated from them. Start with open.go, then unit.go (what one transaction
// is), then claims.go. An identity's life is enroll.go, pending.go (issued, not
// used), identity.go (every request, first use), renew.go, recover.go, lock.go
// (two hold it) and reissue.go (the way out).
package store
