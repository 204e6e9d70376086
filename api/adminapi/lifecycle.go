package adminapi

import (
	"context"
	"log/slog"
	"net/http"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
)

const (
	maxReason       = 500
	maxKey          = 128
	maxDrainTimeout = 7 * 24 * time.Hour
)

// lifecycleActions are the verbs of POST …/nodes/{node}/{verb}.
func lifecycleActions() []schema.Action {
	return []schema.Action{schema.ActionEnroll, schema.ActionProvision, schema.ActionDrain,
		schema.ActionRetire, schema.ActionReactivate, schema.ActionRemove, schema.ActionReissueEnrollment}
}

// lifecycle starts the action's workflow and answers with its early answer. The
// same idempotency key again attaches to the same run.
func (a *API) lifecycle(action schema.Action) handler {
	return func(w http.ResponseWriter, r *http.Request, by Subject) error {
		var req schema.LifecycleRequest
		if err := edge.DecodeOptional(w, r, &req); err != nil {
			return err
		}
		if err := checkLifecycle(action, req); err != nil {
			return err
		}
		node, err := a.find(r)
		if err != nil {
			return err
		}
		answer, err := a.start(r.Context(), operationInput(action, node, req, by), by)
		if err != nil {
			return err
		}
		return edge.JSON(w, http.StatusAccepted, answer)
	}
}

// start submits the operation and, for an enrolment and a reissue, makes the
// bundle.
func (a *API) start(ctx context.Context, in schema.OperationInput, by Subject) (schema.LifecycleAnswer, error) {
	var none schema.LifecycleAnswer
	var bundle schema.BootstrapBundle
	gives := purposeOf(in.Action) != ""
	if gives {
		// Read before anything is changed, so that Vault being away changes
		// nothing.
		trust, err := a.trust(ctx)
		if err != nil {
			return none, err
		}
		bundle = trust
	}
	op, err := a.cfg.Lifecycle.Submit(ctx, in)
	if err != nil {
		return none, err
	}
	edge.Annotate(ctx, slog.String("operation_id", op.OperationID))
	answer := schema.LifecycleAnswer{Operation: op}
	if gives {
		if err := a.mint(ctx, in, by, &bundle); err != nil {
			return none, err
		}
		if err := answerBundle(&answer, in, bundle); err != nil {
			return none, err
		}
	}
	answer.Node, err = a.cfg.Store.Node(ctx, in.NodeID)
	return answer, err
}

// answerBundle puts the bundle into the answer, for a reissue with the command
// that applies it.
func answerBundle(answer *schema.LifecycleAnswer, in schema.OperationInput, bundle schema.BootstrapBundle) error {
	if in.Action == schema.ActionEnroll {
		answer.BootstrapBundle = &bundle
		return nil
	}
	command, err := newScript(in.Host, bundle).restartCommand()
	answer.RecoveryBundle = &schema.RecoveryBundle{BootstrapBundle: bundle, RestartCommand: command}
	return err
}

func operationInput(action schema.Action, node schema.NodeView, req schema.LifecycleRequest, by Subject) schema.OperationInput {
	provider := node.OnboardingMode
	if node.Instance != nil {
		provider = node.Instance.Provider
	}
	return schema.OperationInput{
		OperationID: schema.OperationID(node.ID, action, req.IdempotencyKey), NodeID: node.ID, Action: action,
		Actor: by.Actor, Reason: req.Reason, CorrelationID: by.CorrelationID,
		Host: node.Host, Provider: provider, Region: node.RegionCode, Options: req.Options,
	}
}

func checkLifecycle(action schema.Action, r schema.LifecycleRequest) error {
	o := r.Options
	drains := action == schema.ActionDrain || action == schema.ActionRetire && o.Drain
	switch {
	case !plainText(r.Reason, maxReason):
		return badField("reason", "must be one line of at most 500 characters")
	case !plainText(r.IdempotencyKey, maxKey):
		return badField("idempotency_key", "must be one line of at most 128 characters")
	case o.Drain && action != schema.ActionRetire:
		return badField("options", "drain belongs to retire")
	case o.CordonOnly && action != schema.ActionDrain:
		return badField("options", "cordon_only belongs to drain")
	case o.DrainTimeoutSeconds != 0 && !drains:
		return badField("options", "drain_timeout_seconds belongs to drain, and to retire with drain")
	case o.DrainTimeoutSeconds < 0 || o.DrainTimeoutSeconds > int64(maxDrainTimeout/time.Second):
		return badField("options", "drain_timeout_seconds must be 0 to 604800")
	}
	return nil
}

func plainText(s string, most int) bool {
	if utf8.RuneCountInString(s) > most {
		return false
	}
	for _, c := range s {
		if unicode.IsControl(c) {
			return false
		}
	}
	return true
}
