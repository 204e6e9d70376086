// Package store keeps nodes, operations, tasks, tokens, certificates, resources, the
// outbox and the audit trail in Postgres. It implements the ports of activities,
// api/nodeapi, api/adminapi, api/relay and api/metrics, whose comments are its
// contract.
//
// The SQL is in schema/migrations and schema/queries; internal/store/sqlc is
// generated from it. Start with store.go and tx.go. Each other file is named after
// the rows it reads or writes. An identity's life runs through identity_token.go,
// identity_pending.go (issued, not used), identity_authenticate.go (each request and
// the first use), identity_renew.go, identity_recover.go, identity_lock.go (a clone
// was detected) and identity_reissue.go.
package store
