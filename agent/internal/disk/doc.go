// Package disk writes the agent's files so that a crash leaves the old content or
// the new. FS is the port that tests and simulators replace.
//
// FS carries the identity, the cordon and the journal. The lock of the state folder,
// the status files, the listing of the journal at a start, the removal of working
// folders and the reading of trust bundles use the operating system directly.
package disk
