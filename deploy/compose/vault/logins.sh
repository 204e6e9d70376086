#!/bin/sh
# Copies the logins that setup wrote: to the API its own, to the workers theirs and that of
# the rotator. The processes read them at each login.
set -eu
umask 077
# copy PROCESS PREFIX…
copy() {
  to=/to/$1
  shift
  for prefix in "$@"; do
    for part in role-id secret-id; do
      cp "/logins/$prefix-$part" "$to/.new"
      chown 65532:65532 "$to/.new"
      mv "$to/.new" "$to/$prefix-$part"
    done
  done
  chmod 755 "$to"
}
copy api api
copy worker worker rotator
