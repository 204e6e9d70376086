# Whoever signs verifier sets: an operator who runs gpuaas admin setup without a
# root token, and the rotation. No login of the worker or the API has this policy.

# Each set has two signatures, by the root and by the active task key.
path "transit/sign/{{.RootKey}}" {
  capabilities        = ["update"]
  required_parameters = ["input", "key_version"]
  allowed_parameters = {
    "input"       = ["{{signs "application/vnd.gpuaas.verifier-set.v1+json"}}"]
    "key_version" = []
  }
}
path "transit/sign/{{.TaskKey}}" {
  capabilities        = ["update"]
  required_parameters = ["input", "key_version"]
  allowed_parameters = {
    "input"       = ["{{signs "application/vnd.gpuaas.verifier-set.v1+json"}}"]
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
