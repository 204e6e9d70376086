package vault

import (
	"encoding/base64"
	"errors"
	"net/http"
	"testing"

	"github.com/hashicorp/vault/api"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/task"
)

// The rotator's login may set the least version that signs to any that exists: no policy of
// Vault can compare it with the one before. Raised too far, it keeps the worker from signing
// until it is lowered again. The login cannot lose a version or make a key exportable.
func TestRotatorSetsAnyLeastVersion(t *testing.T) {
	b := prepared(t)
	rotator, err := LoginRotator(t.Context(), b.config("rotator"))
	require.NoError(t, err)
	t.Cleanup(rotator.Close)
	worker := b.login(t, "worker")
	type with = map[string]any
	input := base64.StdEncoding.EncodeToString(dsse.PAE(task.PayloadType, []byte("{}")))
	status := func(c *Client, r request) int {
		_, err := c.send(t.Context(), r)
		if answer, ok := errors.AsType[*api.ResponseError](err); ok {
			return answer.StatusCode
		}
		require.NoError(t, err)
		return http.StatusOK
	}
	sign := put("transit/sign/task-test", with{"input": input, "key_version": 1})
	least := func(version int) int {
		return status(rotator.client, put("transit/keys/task-test/config", with{"min_encryption_version": version}))
	}
	require.Equal(t, http.StatusOK, status(rotator.client, put("transit/keys/task-test/rotate", nil)))
	require.Equal(t, http.StatusOK, least(2))
	require.Equal(t, http.StatusInternalServerError, status(worker, sign), "the only version that nodes trust")
	require.Equal(t, http.StatusOK, least(1))
	require.Equal(t, http.StatusOK, status(worker, sign))
	require.Equal(t, http.StatusBadRequest, least(3), "a version that does not exist")
	for _, name := range []string{"min_decryption_version", "deletion_allowed", "exportable", "allow_plaintext_backup", "auto_rotate_period"} {
		require.Equal(t, http.StatusForbidden, status(rotator.client, put("transit/keys/task-test/config", with{"min_encryption_version": 1, name: 1})), name)
	}
	require.Equal(t, http.StatusForbidden, status(rotator.client, put("transit/keys/task-test/trim", with{"min_available_version": 2})))
}
