# The worker signs tasks, and no other document: what Vault is asked to sign leads
# with the type of the document. It cannot rotate, export or configure the key,
# and it cannot issue certificates.

# A version must be named: without one Vault signs with the newest, so that a
# rotation alone would switch to a key no node knows. Which version is not said
# here, or each rotation would have to change this policy in the same moment.
path "transit/sign/{{.TaskKey}}" {
  capabilities        = ["update"]
  required_parameters = ["input", "key_version"]
  allowed_parameters = {
    "input"       = ["{{signs "application/vnd.gpuaas.task.v1+json"}}"]
    "key_version" = []
  }
}

# The public halves.
path "transit/keys/{{.TaskKey}}" {
  capabilities = ["read"]
}
path "transit/keys/{{.RootKey}}" {
  capabilities = ["read"]
}

# Its own token.
path "auth/token/lookup-self" {
  capabilities = ["read"]
}
path "auth/token/renew-self" {
  capabilities = ["update"]
}
path "auth/token/revoke-self" {
  capabilities = ["update"]
}
