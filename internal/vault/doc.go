// Package vault is the adapter to HashiCorp Vault: it signs node tasks with a
// transit key, issues node certificates from the node CA, hands out the public
// trust material and keeps the API's own server certificate fresh. Keys never
// leave Vault; the one key made here, of the server certificate, never leaves
// the process.
//
// A process calls Login once and closes the Client when it ends. An operator
// calls Setup, with a privileged token, before the first Login; names.go says
// what it makes. Every failure is a *schema.Error and names no secret: errors.go
// is the one place that turns Vault's answers into kinds.
package vault
