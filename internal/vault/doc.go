// Package vault is the adapter to HashiCorp Vault. It signs node tasks with a
// transit key, issues node certificates from the node CA, serves the public trust
// material and keeps the API's own server certificate valid. Vault never exports a
// key. Two private keys are generated in this process and never leave it: the
// server certificate's and the lease key's.
//
// A process calls Login once and closes the Client when it ends. An operator
// calls Setup, with a privileged token, before the first Login; names.go lists the
// objects that Setup creates. Every failure is a *schema.Error and contains no
// secret; errors.go converts Vault's errors to kinds.
package vault
