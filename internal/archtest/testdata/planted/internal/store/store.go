// Package store stands for an adapter that others must not import.
package store

// ID is used by the importers.
const ID = "store"
