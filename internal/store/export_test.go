package store

// DropNotifications makes the store lose its notifications from now on, as a
// process does that dies right after each commit.
func (s *Store) DropNotifications() { s.db.notifier.Close() }
