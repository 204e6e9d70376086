package health

import (
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/text"
)

// ReasonBadHealth is the reason of a KindInvalidRequest for a malformed report.
const ReasonBadHealth = "bad_health"

// maxBootID bounds Report.BootID.
const maxBootID = 64

// maxSamples bounds counts from a node.
const maxSamples = 1 << 30

// Validate checks a report from a node, which is untrusted, against the limits. It accepts checkers
// and reasons that this version does not have, so that newer reporters work. An error is a
// KindInvalidRequest with ReasonBadHealth.
func (r Report) Validate() error {
	if r.At.IsZero() {
		return badHealth("at is missing")
	}
	if !text.IsPrintable(r.BootID, maxBootID) {
		return badHealth("boot_id must have at most %d printable characters", maxBootID)
	}
	if len(r.Conditions) > MaxConditions {
		return badHealth("more than %d conditions", MaxConditions)
	}
	seen := map[[2]string]bool{}
	for i, c := range r.Conditions {
		key := [2]string{c.Checker, c.Component}
		if seen[key] {
			return badHealth("condition %d: the checker and the component appear twice", i)
		}
		seen[key] = true
		if problem := c.problem(); problem != "" {
			return badHealth("condition %d: %s", i, problem)
		}
	}
	return nil
}

// problem returns what is wrong with a condition, without its text.
func (c Condition) problem() string {
	switch {
	case !isName(c.Checker):
		return "checker must have 1 to 32 of a-z, 0-9 and _"
	case c.Checker == CheckerHeartbeat:
		return "no reporter has the checker heartbeat: the control plane finds the silence of a node"
	case !text.IsPrintable(c.Component, MaxComponent):
		return "component must have at most 64 printable characters"
	case !slices.Contains([]Status{Healthy, Unhealthy, Unknown}, c.Status):
		return "status must be healthy, unhealthy or unknown"
	case !text.IsToken(c.Reason, MaxReason, "_"):
		return "reason must have 1 to 64 letters, digits and _"
	case c.Status == Unhealthy && !slices.Contains(Repairs(), c.Repair):
		return "repair of an unhealthy condition must be one of " + text.Or(Repairs())
	case c.Status != Unhealthy && c.Repair != "":
		return "repair is only for an unhealthy condition"
	case !text.IsPrintable(c.Detail, MaxDetail):
		return "detail must have at most 256 printable characters"
	case c.Since.IsZero():
		return "since is missing"
	case c.Code < 0 || c.Samples < 0 || c.FaultSamples < 0 || c.UnknownSeconds < 0 || max(c.Code, c.Samples, c.FaultSamples) > maxSamples || c.UnknownSeconds > maxSamples:
		return "a number is out of range"
	}
	return ""
}

func isName(s string) bool {
	return text.IsToken(s, MaxName, "_") && strings.ToLower(s) == s
}

func badHealth(format string, args ...any) error {
	return schema.NewError(schema.KindInvalidRequest, "malformed health report: "+format, args...).WithReason(ReasonBadHealth)
}

// reasonOr returns s if it can be a reason of a condition, otherwise instead.
func reasonOr(s, instead string) string {
	if text.IsToken(s, MaxReason, "_") {
		return s
	}
	return instead
}
