// Package activities holds the effects of lifecycle workflows on the outside:
// one file per outside party, each with its ports and the activities on them.
// Adapters in internal implement the ports; worker/wire.go connects them.
//
// Every activity may run twice: it takes the operation's fence or id as its
// idempotency key and documents the effect of a second run. Start with record.go.
package activities
