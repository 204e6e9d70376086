package store

// DropNotifications makes the store lose its notifications from now on, as a
// process does that dies right after each commit.
func (s *Store) DropNotifications() { s.db.notifier.Close() }

// NodeViewSQL returns the statements that read a node and its open operations, by
// name.
func NodeViewSQL() map[string]string {
	return map[string]string{
		"node":       nodeFilter("").sql("SELECT "+fullColumns+fromNodes, nodeOrder, 1),
		"operations": openFilter(nil).sql("SELECT "+operationColumns+fromOperations, openOrder, 2),
	}
}
