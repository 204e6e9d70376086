package schema

import "github.com/google/uuid"

// NewID returns a new time-ordered id (UUIDv7) for a node, an operation, an
// instance or a correlation.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }

// IsID reports whether s has the form of an id (so a NODE argument is an id and
// not a host name).
func IsID(s string) bool { return uuid.Validate(s) == nil && len(s) == 36 }
