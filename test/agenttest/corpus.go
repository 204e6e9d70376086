package agenttest

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// badGrant is a way in which a grant is not one for the offer, and the reason.
type badGrant struct {
	Reason string
	Issue  func(f *API)                                 // how the server is wrong
	Task   func(p *task.Payload)                        // how the task is
	Offer  func(f *API, o *wire.TaskOffer, good string) // how the answer is
}

func grantThat(change func(*task.Grant)) func(*API) {
	return func(f *API) { f.OnGrant = change }
}

func keyThat(change func(*trust.LeaseKey)) func(*API) {
	return func(f *API) { f.onKey = change }
}

// BadGrants is the corpus of offers whose task is good and whose grant is not.
func BadGrants() map[string]badGrant {
	return map[string]badGrant{
		"other nonce":          {Reason: "grant_other_nonce", Issue: grantThat(func(g *task.Grant) { g.Nonce = schema.NewID() })},
		"no nonce":             {Reason: "grant_other_nonce", Issue: grantThat(func(g *task.Grant) { g.Nonce = "" })},
		"another task":         {Reason: "grant_other_task", Issue: grantThat(func(g *task.Grant) { g.TaskID = schema.NewID() })},
		"another envelope":     {Reason: "grant_other_task", Issue: grantThat(func(g *task.Grant) { g.EnvelopeSHA256 = schema.SHA256Hex(nil) })},
		"another lease":        {Reason: "grant_other_epoch", Issue: grantThat(func(g *task.Grant) { g.LeaseEpoch++ })},
		"another lease end":    {Reason: "grant_other_expiry", Issue: grantThat(func(g *task.Grant) { g.LeaseUntil = g.LeaseUntil.Add(time.Hour) })},
		"another operation":    {Reason: "state_expectation", Issue: grantThat(func(g *task.Grant) { g.OpSeq++ })},
		"another state":        {Reason: "state_expectation", Task: func(p *task.Payload) { p.Expect.NodeState = lifecycle.NodeDraining }},
		"other environment":    {Reason: "grant_other_env", Issue: grantThat(func(g *task.Grant) { g.Env = "prod" })},
		"other node":           {Reason: "grant_other_node", Issue: grantThat(func(g *task.Grant) { g.NodeID = schema.NewID() })},
		"old incarnation":      {Reason: "grant_other_node", Issue: grantThat(func(g *task.Grant) { g.Incarnation = 0 })},
		"version":              {Reason: "grant_unknown_version", Issue: grantThat(func(g *task.Grant) { g.V = 2 })},
		"by the task key":      {Reason: "grant_bad_signature", Issue: func(f *API) { f.grantSigner = f.Signer }},
		"by an unknown key":    {Reason: "grant_bad_signature", Issue: func(f *API) { f.grantSigner = NewKey(f.T) }},
		"by the root":          {Reason: "grant_key_bad_signature", Issue: func(f *API) { f.KeySigner = f.Root }},
		"by a staged key":      {Reason: "grant_key_bad_signature", Issue: func(f *API) { f.KeySigner = f.Staged }},
		"self-delegated":       {Reason: "grant_key_bad_signature", Issue: func(f *API) { f.KeySigner = f.delegate }},
		"delegation expired":   {Reason: "grant_key_expired", Issue: keyThat(func(k *trust.LeaseKey) { k.NotAfter = time.Now().Add(-time.Second) })},
		"delegation to come":   {Reason: "grant_key_expired", Issue: keyThat(func(k *trust.LeaseKey) { k.NotBefore = time.Now().Add(time.Hour) })},
		"delegation of prod":   {Reason: "grant_key_other_env", Issue: keyThat(func(k *trust.LeaseKey) { k.Env = "prod" })},
		"delegation of no key": {Reason: "grant_key_bad_body", Issue: keyThat(func(k *trust.LeaseKey) { k.Public = nil })},
		"delegation version":   {Reason: "grant_key_unknown_version", Issue: keyThat(func(k *trust.LeaseKey) { k.V = 0 })},
		"task key delegated": {Reason: "grant_key_not_a_delegate", Issue: func(f *API) {
			f.grantSigner = f.Signer
			f.onKey = func(k *trust.LeaseKey) { k.Public = PublicOf(f.Signer) }
		}},
		"no grant": {Reason: "grant_payload_type", Offer: func(_ *API, o *wire.TaskOffer, _ string) { o.Grant = json.RawMessage(`{}`) }},
		"no delegation": {Reason: "grant_key_payload_type", Offer: func(_ *API, o *wire.TaskOffer, _ string) {
			o.GrantKey = json.RawMessage(`null`)
		}},
		"task instead of the grant": {Reason: "grant_payload_type", Offer: func(_ *API, o *wire.TaskOffer, _ string) { o.Grant = o.Envelope }},
		"grant instead of the task": {Reason: "payload_type", Offer: func(_ *API, o *wire.TaskOffer, _ string) { o.Envelope = o.Grant }},
		"unknown field": {Reason: "grant_bad_body", Offer: func(f *API, o *wire.TaskOffer, _ string) {
			o.Grant = SignBytes(f.T, f.delegate, trust.LeasePayloadType, []byte(`{"x":1}`))
			o.Grant = bytes.Replace(o.Grant, []byte(`"keyid":"k1"`), []byte(`"keyid":""`), 1)
		}},
		"data after the grant": {Reason: "grant_bad_envelope", Offer: func(_ *API, o *wire.TaskOffer, _ string) {
			o.Grant = append(bytes.Clone(o.Grant), " {}"...)
		}},
		"too large": {Reason: "grant_too_large", Issue: grantThat(func(g *task.Grant) { g.SetHash = strings.Repeat("x", wire.MaxBodyBytes) })},
	}
}

// WrongOffer is one offer of the corpus, for a poll's nonce.
func (f *API) WrongOffer(bad badGrant, seq int64, nonce string) wire.TaskOffer {
	p := f.Payload(task.WorkloadCordon, seq, nil)
	if bad.Task != nil {
		bad.Task(&p)
	}
	o := f.OfferOf(p, 3)
	if bad.Issue != nil {
		bad.Issue(f)
	}
	o = f.Granted(o, nonce)
	if bad.Offer != nil {
		bad.Offer(f, &o, nonce)
	}
	return o
}

// BadTask is an envelope that must be refused, and the reason.
type BadTask struct {
	Envelope json.RawMessage
	Reason   string
}

// BadTasks is the corpus: every way an envelope can be wrong but one.
func BadTasks(f *API) map[string]BadTask {
	body := func(change func(*task.Payload)) []byte {
		p := f.Payload(task.WorkloadCordon, 1, nil)
		change(&p)
		return f.Body(p)
	}
	sign := func(b []byte) json.RawMessage { return SignBytes(f.T, f.Signer, task.PayloadType, b) }
	changed := func(change func(*task.Payload)) json.RawMessage { return sign(body(change)) }
	whole := body(func(*task.Payload) {})
	good := sign(whole)
	replace := func(old, with string) json.RawMessage {
		return sign(bytes.Replace(whole, []byte(old), []byte(with), 1))
	}
	outer := func(old, with string) json.RawMessage {
		return bytes.Replace(bytes.Clone(good), []byte(old), []byte(with), 1)
	}
	now := time.Now()
	return map[string]BadTask{
		"another key":         {SignBytes(f.T, NewKey(f.T), task.PayloadType, whole), "bad_signature"},
		"staged key":          {SignAs(f.T, EdSigner{Key: f.Staged, ID: "k2"}, task.PayloadType, whole), "bad_signature"},
		"staged key unnamed":  {SignAs(f.T, EdSigner{Key: f.Staged, ID: ""}, task.PayloadType, whole), "bad_signature"},
		"staged key misnamed": {SignAs(f.T, EdSigner{Key: f.Staged, ID: "k1"}, task.PayloadType, whole), "bad_signature"},
		"other payload type":  {SignBytes(f.T, f.Signer, "application/json", whole), "payload_type"},
		"payload type swapped after signing": {
			bytes.Replace(SignBytes(f.T, f.Signer, "application/json", whole), []byte("application/json"), []byte(task.PayloadType), 1),
			"bad_signature",
		},
		"no signature":                 {json.RawMessage(`{"payloadType":"` + task.PayloadType + `","payload":"e30=","signatures":[]}`), "bad_envelope"},
		"many signatures":              {manySignatures(good), "bad_envelope"},
		"unknown key id":               {outer(`"keyid":"k1"`, `"keyid":"k9"`), "bad_signature"},
		"unknown outer field":          {outer(`{"payloadType"`, `{"x":1,"payloadType"`), "bad_envelope"},
		"outer field twice":            {outer(`{"payloadType"`, `{"payload":"e30=","payloadType"`), "bad_envelope"},
		"data after":                   {append(bytes.Clone(good), " {}"...), "bad_envelope"},
		"not json":                     {json.RawMessage(`not json`), "bad_envelope"},
		"empty":                        {nil, "bad_envelope"},
		"null":                         {json.RawMessage(`null`), "payload_type"},
		"too large":                    {changed(func(p *task.Payload) { p.WorkflowID = strings.Repeat("x", wire.MaxBodyBytes) }), "too_large"},
		"body not a task":              {sign([]byte(`[]`)), "bad_body"},
		"unknown field":                {replace(`{"v":1`, `{"v":1,"shell":"rm"`), "bad_body"},
		"field twice":                  {replace(`{"v":1`, `{"v":1,"env":"prod"`), "bad_body"},
		"field twice by case":          {replace(`{"v":1`, `{"v":1,"ENV":"prod"`), "bad_body"},
		"data after the body":          {sign(append(bytes.Clone(whole), "{}"...)), "bad_body"},
		"another digest of the params": {changed(func(p *task.Payload) { p.ParamsSHA256 = schema.SHA256Hex([]byte("{}")) }), "params_digest"},
		"version of the type":          {changed(func(p *task.Payload) { p.TypeVersion = 2 }), "unknown_type_version"},
		"newer verifier set":           {changed(func(p *task.Payload) { p.MinSetVersion = 1 }), "set_too_old"},
		"lease key":                    {SignBytes(f.T, f.delegate, task.PayloadType, whole), "bad_signature"},
		"lease key by its name":        {SignAs(f.T, EdSigner{Key: f.delegate, ID: "lease-1"}, task.PayloadType, whole), "bad_signature"},
		"root key":                     {SignAs(f.T, EdSigner{Key: f.Root, ID: "root"}, task.PayloadType, whole), "bad_signature"},
		"a grant for a task":           {SignBytes(f.T, f.Signer, trust.LeasePayloadType, whole), "payload_type"},
		"version":                      {changed(func(p *task.Payload) { p.V = 2 }), "unknown_version"},
		"no version":                   {changed(func(p *task.Payload) { p.V = 0 }), "unknown_version"},
		"other env":                    {changed(func(p *task.Payload) { p.Env = "prod" }), "other_env"},
		"other node":                   {changed(func(p *task.Payload) { p.NodeID = schema.NewID() }), "other_node"},
		"old incarnation":              {changed(func(p *task.Payload) { p.Incarnation = 0 }), "other_incarnation"},
		"later incarnation":            {changed(func(p *task.Payload) { p.Incarnation = 2 }), "other_incarnation"},
		"expired":                      {changed(func(p *task.Payload) { p.ExpiresAt = now.Add(-time.Second) }), "expired"},
		"no expiry":                    {changed(func(p *task.Payload) { p.ExpiresAt = time.Time{} }), "expired"},
		"not yet valid":                {changed(func(p *task.Payload) { p.NotBefore = now.Add(5*time.Minute + time.Minute) }), "not_yet_valid"},
		"unknown type":                 {changed(func(p *task.Payload) { p.Type = "shell.run" }), "unknown_type"},
		"no type":                      {changed(func(p *task.Payload) { p.Type = "" }), "unknown_type"},
		"gentler effect":               {changed(func(p *task.Payload) { p.Type = task.WorkloadDrain }), "wrong_effect"},
		"malformed id":                 {changed(func(p *task.Payload) { p.TaskID = "../../etc/passwd" }), "task_id_mismatch"},
		"params not wanted":            {changed(func(p *task.Payload) { p.Params = json.RawMessage(`{"x":1}`) }), "bad_params"},
		"drain without deadline": {changed(func(p *task.Payload) {
			p.Type, p.Effect, p.Params = task.WorkloadDrain, task.EffectDestructive, json.RawMessage(`{"force":true}`)
		}), "bad_params"},
		"drain with unknown params": {changed(func(p *task.Payload) {
			p.Type, p.Effect = task.WorkloadDrain, task.EffectDestructive
			p.Params = json.RawMessage(`{"deadline":"2030-01-01T00:00:00Z","signal":9}`)
		}), "bad_params"},
		"sequence below the floor": {changed(func(p *task.Payload) { p.Seq = 0 }), "replayed_seq"},
	}
}

func manySignatures(envelope []byte) json.RawMessage {
	var e map[string]any
	_ = json.Unmarshal(envelope, &e)
	list, _ := e["signatures"].([]any)
	for range 4 {
		list = append(list, list[0])
	}
	e["signatures"] = list
	out, _ := json.Marshal(e)
	return out
}
