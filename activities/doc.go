// Package activities holds what lifecycle workflows do to the outside world:
// one file per outside party, each with the port it needs and the activities on
// it. Adapters live in internal and meet the ports in worker/wire.go.
//
// Every activity may run twice: it takes the operation's fence or id as its
// idempotency key and says what a second run does. Start with record.go.
package activities
