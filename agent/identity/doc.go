// Package identity maintains a node's identity: a certificate with its key, and
// the recovery token and key that replace a lost certificate.
//
// Manager is the entry point. Each pass of Manager.Reconcile derives the State of
// the identity and takes at most one action for it: enroll, renew, recover, confirm
// a new certificate with its first call, fall back to another stored certificate,
// or wipe. Manager.Observe takes the outcome of each poll; classify.go maps an
// error to its consequence for the identity.
//
//	none          enroll, or recover
//	active        wait until the certificate is due
//	renewing      request the next certificate
//	unconfirmed   make the first call with the next certificate
//	expired       fall back, recover, or enroll
//	rejected      wait, then try the identity again
//	superseded    wait, then try the identity again
//	locked        wait up to an hour: an operator must decide
//	removed       keys and tokens are wiped
//
// Identities are stored in numbered files (versions.go). A key is stored before it is
// requested (staged_keys.go), so that a request can be repeated after a lost response.
// The state folder is consistent after a crash between any two steps.
package identity
