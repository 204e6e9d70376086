package adminapi

import (
	"context"
	"log/slog"
	"net/http"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// lifecycle starts the action's workflow and answers as soon as it is accepted.
// The same idempotency key again attaches to the same operation.
func (a *API) lifecycle(action lifecycle.Action) handler {
	return func(w http.ResponseWriter, r *http.Request, by audit.Subject) error {
		var req wire.LifecycleRequest
		if err := edge.DecodeOptional(w, r, &req); err != nil {
			return err
		}
		if err := checkLifecycle(action, req); err != nil {
			return err
		}
		key, err := idempotencyKey(r)
		if err != nil {
			return err
		}
		node, err := a.find(r)
		if err != nil {
			return err
		}
		answer, err := a.start(r.Context(), operationInput(action, node, req, key, by), by)
		if err != nil {
			return err
		}
		w.Header().Set("Location", adminPath+"/operations/"+answer.Operation.OperationID)
		return edge.JSON(w, http.StatusAccepted, answer)
	}
}

// start submits the operation and, for an enrollment and a reissue, makes the
// bundle.
func (a *API) start(ctx context.Context, in lifecycle.OperationInput, by audit.Subject) (wire.LifecycleResponse, error) {
	var none wire.LifecycleResponse
	var bundle trust.BootstrapBundle
	gives := purposeOf(in.Action) != ""
	if gives {
		// Read before anything is changed, so that an unavailable Vault changes
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
	answer := wire.LifecycleResponse{Operation: op}
	if gives {
		if err := a.mint(ctx, in, by, &bundle); err != nil {
			return none, err
		}
		if err := answerBundle(&answer, in, bundle); err != nil {
			return none, err
		}
	}
	answer.Node, err = a.cfg.Views.Node(ctx, in.NodeID)
	return answer, err
}

// answerBundle puts the bundle into the answer, for a reissue with the command
// that applies it.
func answerBundle(answer *wire.LifecycleResponse, in lifecycle.OperationInput, bundle trust.BootstrapBundle) error {
	if in.Action == lifecycle.ActionEnroll {
		answer.BootstrapBundle = &bundle
		return nil
	}
	command, err := newScript(in.Host, bundle).restartCommand()
	answer.RecoveryBundle = &wire.RecoveryBundle{BootstrapBundle: bundle, RestartCommand: command}
	return err
}

func operationInput(action lifecycle.Action, node wire.NodeView, req wire.LifecycleRequest, key string, by audit.Subject) lifecycle.OperationInput {
	provider := node.OnboardingMode
	if node.Instance != nil {
		provider = node.Instance.Provider
	}
	return lifecycle.OperationInput{
		OperationID: lifecycle.OperationID(node.ID, action, key), NodeID: node.ID, Action: action,
		Actor: by.Actor, Via: by.Via, Reason: req.Reason, CorrelationID: by.CorrelationID,
		Host: node.Host, Provider: provider, Region: node.RegionCode, Options: req.Options,
	}
}

func checkLifecycle(action lifecycle.Action, r wire.LifecycleRequest) error {
	o := r.Options
	drains := action == lifecycle.ActionDrain || action == lifecycle.ActionRetire && o.Drain
	if err := checkReason(r.Reason, false); err != nil {
		return err
	}
	switch {
	case o.Drain && action != lifecycle.ActionRetire:
		return badField("options", "drain belongs to retire")
	case o.CordonOnly && action != lifecycle.ActionDrain:
		return badField("options", "cordon_only belongs to drain")
	case o.DrainTimeoutSeconds != 0 && !drains:
		return badField("options", "drain_timeout_seconds belongs to drain, and to retire with drain")
	case o.DrainTimeoutSeconds < 0 || o.DrainTimeoutSeconds > int64(wire.MaxDrainDeadline/time.Second):
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
