// Package runner accepts, runs and reports tasks.
//
// A task is in the journal before its first effect, and its result, with a digest,
// before it is reported. If the disk is full at that moment, the result is reported
// from memory and stored as soon as the disk accepts it. A destructive task starts
// after the server confirmed that it is still wanted. After a crash, a finished task is
// reported, a read or idempotent task runs again once the server confirmed it, and a
// destructive task fails with an unknown outcome, unless its executor is resumable.
//
// Runner is the entry point; an Executor runs one type of task.
package runner
