package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/health"
)

// DropNotifications makes the store lose its notifications from now on, as a
// process does that dies right after each commit.
func (s *Store) DropNotifications() { s.db.notifier.Close() }

// ViewSQL returns the statements that read one node or task, or a batch to watch, by
// name.
func ViewSQL() map[string]string {
	node := &filter{}
	node.where("n.node_id = " + node.arg("") + "::uuid")
	return map[string]string{
		"node":         node.sql("SELECT "+fullColumns+fromNodes, nodeOrder, 1),
		"operations":   openOperations,
		"machines":     selectMachines,
		"certificates": selectCertificates,
		"instance":     selectInstance,
		"instances":    instanceFilter(adminapi.InstanceQuery{NodeID: schema.NewID()}).sql("SELECT "+instanceColumns+fromInstances, instanceOrder, 1),
		"conditions":   selectConditions,
		"signals":      signalFilter(adminapi.SignalQuery{NodeID: schema.NewID()}).sql(selectSignals, signalOrder, 1),
		"task":         selectTask,
		"watched":      watchedBatch,
	}
}

// StuckSQL returns the statements that list and count stuck operations, by name. Their
// parameter is the limit.
func StuckSQL() map[string]string {
	return map[string]string{
		"list":  stuckFilter(adminapi.OperationQuery{}).sql("SELECT "+operationColumns+fromOperations, stuckSince+", o.operation_id", 100),
		"count": stuckFilter(adminapi.OperationQuery{}).sql("SELECT count(*)"+fromOperations, "1", 0),
	}
}

// RecordSignal records a signal in a transaction of its own.
func (s *Signals) RecordSignal(ctx context.Context, sig health.Signal) error {
	return s.db.write(ctx, "recording a signal", func(ctx context.Context, tx *tx) error { return recordSignal(ctx, tx, sig) })
}

// Notify sends a notification after those that are pending.
func (s *Store) Notify(n postgres.Notification) { s.db.notifier.Notify(n) }

// countedQueries counts the statements that return rows.
type countedQueries struct {
	sqlc.DBTX
	queries int
}

func (c *countedQueries) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	c.queries++
	return c.DBTX.Query(ctx, sql, args...)
}

// CountedPart is Retention.NextPart with the number of its queries for several rows.
func (s *Store) CountedPart(ctx context.Context, keep time.Duration) (part audit.ArchivePart, queries int, err error) {
	counted := &countedQueries{DBTX: s.db.Pool()}
	part, err = (&Retention{db: &db{DB: s.db.DB, q: sqlc.New(counted)}}).NextPart(ctx, keep)
	return part, counted.queries, err
}
