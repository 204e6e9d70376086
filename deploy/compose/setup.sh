#!/bin/sh
# Writes .env and the folder secrets for compose.yaml. A second run keeps all secrets and your
# lines in .env, and issues new tokens for Temporal, which are valid for a year.
# Usage: setup.sh VERSION NAME, the release of gpuaas and the host name of the node API.
set -eu
version=${1:?Usage: setup.sh VERSION NAME}
name=${2:?Usage: setup.sh VERSION NAME}
cd "$(dirname "$0")"

# Containers read the files under several user IDs. On this host, the folder protects them.
umask 022
mkdir -p secrets
chmod 700 secrets

random() { openssl rand -hex 24; }
# keep FILE COMMAND… writes the output of the command to a file that does not exist.
keep() {
  file=secrets/$1
  shift
  if [ ! -s "$file" ]; then
    "$@" > "$file.new"
    mv "$file.new" "$file"
  fi
}

for user in postgres owner worker api-admin api-node temporal grafana; do
  keep "password-$user" random
done
keep admin-token random
url() { printf 'postgres://%s:%s@postgres:5432/gpuaas?sslmode=disable\n' "$1" "$(cat "secrets/password-$2")"; }
keep url-owner url gpuaas owner
keep url-worker url gpuaas_worker worker
keep url-api-admin url gpuaas_api_admin api-admin
keep url-api-node url gpuaas_api_node api-node

# The key that signs the tokens of Temporal. No container has it.
(
  umask 077
  keep temporal-signing-key openssl genrsa 2048
)
base64url() { openssl base64 -A | tr '+/' '-_' | tr -d '='; }
modulus() {
  openssl rsa -in secrets/temporal-signing-key -noout -modulus | sed 's/^Modulus=//' | fold -w 2 |
    while read -r byte; do
      # shellcheck disable=SC2059 # the format is the byte
      printf "\\$(printf '%03o' "0x$byte")"
    done | base64url
}
jwks() { printf '{"keys":[{"kty":"RSA","kid":"compose","alg":"RS256","use":"sig","e":"AQAB","n":"%s"}]}\n' "$(modulus)"; }
keep temporal-jwks jwks

# token SUBJECT PERMISSIONS writes a token. The file keeps its inode, because it is mounted.
token() {
  body=$(printf '{"alg":"RS256","kid":"compose","typ":"JWT"}' | base64url).$(
    printf '{"sub":"%s","aud":"gpuaas-compose","exp":%s,"permissions":[%s]}' "$1" "$(($(date +%s) + 365 * 86400))" "$2" | base64url)
  signature=$(printf '%s' "$body" | openssl dgst -sha256 -sign secrets/temporal-signing-key | base64url)
  printf '%s.%s\n' "$body" "$signature" > "secrets/temporal-token-$1"
}
token setup '"temporal-system:admin","gpuaas:admin"'
token worker '"gpuaas:write"'
token api '"gpuaas:write"'

# The other lines of .env are the operator's, for example the port of the node API.
{
  printf 'GPUAAS_VERSION=%s\nNODE_API_NAME=%s\n' "$version" "$name"
  [ ! -f .env ] || grep -v -E '^(GPUAAS_VERSION|NODE_API_NAME)=' .env || :
} > .env.new
mv .env.new .env
echo "Wrote .env and the folder secrets. Next: docker compose up --detach"
