#!/bin/sh
# Initializes Vault with one unseal key, and unseals it whenever it is sealed. The key and
# the root token are in /keys/init, in a volume.
set -eu
umask 077
# The processes of gpuaas have this user ID.
chown 65532:65532 /prepare/*
chmod 700 /prepare/*

value() { sed -n "s/^$1: //p" /keys/init; }

# The status is 2 if Vault is sealed or not initialized, and 1 if it does not respond.
status() {
  vault "$@" > /dev/null 2>&1 && echo 0 || echo $?
}

while :; do
  if [ "$(status status)" = 2 ]; then
    if [ "$(status operator init -status)" = 2 ]; then
      vault operator init -key-shares=1 -key-threshold=1 > /keys/init.new
      mv /keys/init.new /keys/init
    fi
    value 'Initial Root Token' > /setup-token/token.new
    chown 65532:65532 /setup-token/token.new
    mv /setup-token/token.new /setup-token/token
    chmod 755 /setup-token
    value 'Unseal Key 1' | tr -d '\n' | vault write sys/unseal key=- > /dev/null || true
  fi
  sleep 5
done
