// Package storetest has the rules of the control plane's store for tests: Store follows
// them in memory, and Contract checks them, against Store and against the store on
// Postgres.
package storetest
