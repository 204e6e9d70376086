// Package verify decides which offered tasks the node accepts.
//
// An offer holds three signed documents, and each is verified as bytes and then
// parsed once, strictly. The task, by an active or grace key of the verifier set:
// for this environment, node and incarnation, of a known type, with the params of
// its digest. The grant, by a key that the control plane delegates for a day: made
// for the nonce of this poll and for this task, envelope and lease, with what the
// task expects of the node. The delegation, by an active or grace key. The time
// that counts is the latest of a verified grant, advanced by the local clock's
// progress; the local clock's reading does not count.
//
// Verifier sets follow one another: each names the hash of the one before and is
// signed by a root key and by the key that was active. SetStore stores a set before
// using it and never returns to an older one, except to a set of a higher epoch, which
// only the root signs. An expired set still serves reads and idempotent tasks.
//
// A rejection is schema.KindTaskRefused with a reason, which the agent reports.
package verify
