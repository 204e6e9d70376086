package nodeapi

import (
	"reflect"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// withholdResult replaces the texts of a result that contain a secret, which the
// database, the audit trail and Temporal would keep. It does not reject the report: the
// outcome counts, and a repeat would be the same. The signed bytes contain the secret
// too, so they are not stored. The signature, which was verified, stays.
func (a *API) withholdResult(r *ReceivedResult) error {
	was := r.Result
	output, err := a.cfg.Secrets.WithholdJSON(r.Output)
	if err != nil {
		return schema.Wrap(schema.KindInternal, err, "withholding a secret in the output")
	}
	r.Message, r.OutputTail, r.Output = a.cfg.Secrets.Withhold(r.Message), a.cfg.Secrets.Withhold(r.OutputTail), output
	r.Code = schema.Kind(a.cfg.Secrets.Withhold(string(r.Code)))
	if !reflect.DeepEqual(was, r.Result) {
		r.Proof.Body = []byte{}
	}
	return nil
}

// withholdPoll replaces the texts of a poll that contain a secret.
func (a *poller) withholdPoll(p *wire.PollRequest) {
	texts := []*string{&p.AgentSession}
	if h := p.Heartbeat; h != nil {
		texts = append(texts, &h.AgentVersion, &h.BootID, &h.Fault)
		for i := range h.Workloads {
			texts = append(texts, &h.Workloads[i].Name, &h.Workloads[i].Kind, &h.Workloads[i].Warning)
		}
	}
	for _, text := range texts {
		*text = a.cfg.Secrets.Withhold(*text)
	}
}
