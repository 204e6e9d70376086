package activities

import (
	"context"
	"encoding/json"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Signer signs task payloads with a key that stays in Vault.
type Signer interface {
	// Sign returns a DSSE envelope of the payload bytes with payload type
	// task.PayloadType. KindServiceUnavailable when Vault is sealed or
	// cannot be reached.
	Sign(ctx context.Context, payload []byte) (envelope []byte, err error)
}

// Sets reads the verifier sets.
type Sets interface {
	// MinVerifierSet returns the version of the verifier set in which the key that
	// Signer uses became active, 0 for the first set. A node with an older set
	// cannot verify the key's signatures.
	MinVerifierSet(ctx context.Context) (int64, error)
}

// TaskSigner makes the envelopes of new tasks. All activities of a worker use the same one.
type TaskSigner struct {
	// Signer signs payloads with the times of this machine.
	Signer Signer
	// Sets supplies the oldest verifier set that can verify a task. nil accepts any.
	Sets Sets
	// Env is the environment's name, part of every identity and envelope.
	Env string
}

// envelope signs a task. The caller sets what identifies the task, its type with the params,
// its seq and attempt, what it expects and when it expires; envelope sets the rest.
func (s TaskSigner) envelope(ctx context.Context, p task.Payload) ([]byte, error) {
	issued := time.Now().UTC().Truncate(time.Second)
	info, _ := p.Type.Info()
	params := json.RawMessage("{}")
	// The node hashes the params in the encoding of the signed body, without spaces.
	// Postgres returns them with spaces.
	if compact, err := json.Marshal(p.Params); err == nil && len(p.Params) > 0 {
		params = compact
	}
	p.V, p.Env, p.TypeVersion, p.Effect = 1, s.Env, 1, info.Effect
	p.Params, p.ParamsSHA256 = params, schema.SHA256Hex(params)
	p.IssuedAt, p.NotBefore, p.ExpiresAt = issued, issued, p.ExpiresAt.UTC()
	p.MaxRuntime = int64(info.MaxRuntime / time.Second)
	if s.Sets != nil {
		// Read before signing: if the key changes in between, nodes that have the new
		// key have a later set than this one.
		least, err := s.Sets.MinVerifierSet(ctx)
		if err != nil {
			return nil, err
		}
		p.MinSetVersion = least
	}
	payload, err := json.Marshal(p)
	if err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "encoding task %s", p.TaskID)
	}
	return s.Signer.Sign(ctx, payload)
}
