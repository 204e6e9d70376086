# The API issues node certificates and its own server certificate, by CSR. It
# cannot have a CA make a key, use another role, sign a CSR as it stands, change
# an issuer or sign tasks. Of the task key it gets one thing: the delegation of
# its own key for leases.

path "pki-node/sign/node" {
  capabilities        = ["update"]
  required_parameters = ["csr", "uri_sans"]
  allowed_parameters = {
    "csr"      = []
    "uri_sans" = ["{{.NodeURIs}}"]
  }
}

path "pki-api/sign/api" {
  capabilities        = ["update"]
  required_parameters = ["csr"]
  allowed_parameters = {
    "csr" = []
    {{- if .DNS}}
    "alt_names" = [{{quoted .DNS}}]
    {{- end}}
    {{- if .IPs}}
    "ip_sans" = [{{quoted .IPs}}]
    {{- end}}
  }
}

# The names its server certificate is to carry.
path "pki-api/roles/api" {
  capabilities = ["read"]
}

# The CA certificates.
path "pki-node/issuers" {
  capabilities = ["list"]
}
path "pki-node/issuer/+" {
  capabilities = ["read"]
}
path "pki-api/issuers" {
  capabilities = ["list"]
}
path "pki-api/issuer/+" {
  capabilities = ["read"]
}

# A lease key, and no other document: what Vault is asked to sign leads with the
# type of the document.
path "transit/sign/{{.TaskKey}}" {
  capabilities        = ["update"]
  required_parameters = ["input", "key_version"]
  allowed_parameters = {
    "input"       = ["{{signs "application/vnd.gpuaas.lease-key.v1+json"}}"]
    "key_version" = []
  }
}

# The public halves, for bootstrap bundles.
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
