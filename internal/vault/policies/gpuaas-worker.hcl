# The worker signs tasks. It cannot rotate, export or configure the key, and it
# cannot issue certificates.

# A version must be named: without one Vault signs with the newest, so that a
# rotation alone would switch to a key no node knows. Which version is not said
# here, or each rotation would have to change this policy in the same moment.
path "transit/sign/{{.TaskKey}}" {
  capabilities        = ["update"]
  required_parameters = ["input", "key_version"]
  allowed_parameters = {
    "input"       = []
    "key_version" = []
  }
}

# The public half.
path "transit/keys/{{.TaskKey}}" {
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
