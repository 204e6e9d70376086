// Package activities contains the side effects of lifecycle workflows: one file per
// external service, each with its ports and the activities that use them.
// Adapters in internal implement the ports; worker/wire.go connects them.
//
// Every activity may run twice: it takes the operation's fence or id as its
// idempotency key and documents the effect of a second run. Start with record.go.
package activities
