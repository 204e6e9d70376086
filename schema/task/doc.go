// Package task defines the signed tasks that node agents run, their results, and
// the leases they are dispatched under.
package task
