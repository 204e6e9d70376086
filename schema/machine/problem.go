package machine

import "github.com/gpuaas/gpuaas/schema"

// The reasons of the errors of a provider.
const (
	// ReasonQuota: the account's quota is used up. ReasonCapacity: the provider has no free
	// machine of the type.
	ReasonQuota    = "provider_quota_exceeded"
	ReasonCapacity = "provider_capacity"
	// ReasonAuth: the provider rejects the credentials, or there are none.
	ReasonAuth = "provider_unauthorized"
	// ReasonRejected: the provider rejects the request as invalid.
	ReasonRejected = "provider_rejected"
	// ReasonImage: the image is not built or not published.
	ReasonImage = "provider_image_missing"
	// ReasonMissing: the provider has no machine of the instance.
	ReasonMissing = "machine_not_found"
	// ReasonUnavailable: the provider does not respond, or it responds with an error of its own.
	// The request had no effect.
	ReasonUnavailable = "provider_unavailable"
	// ReasonAmbiguous: the request may have had an effect. The caller asks with Describe
	// before it repeats the request.
	ReasonAmbiguous = "provider_ambiguous"
	// ReasonPerson: a person must do what the message says.
	ReasonPerson = "provider_needs_person"
	// ReasonUnsupported: the provider cannot do this.
	ReasonUnsupported = "provider_unsupported"
	// ReasonFailed: the machine is in phase Failed.
	ReasonFailed = "machine_failed"
	// ReasonStarting: the machine is not running yet. ReasonDeleting: it is not deleted yet.
	ReasonStarting = "machine_starting"
	ReasonDeleting = "machine_deleting"
	// ReasonDisabled: the provider is switched off in the settings of the worker.
	ReasonDisabled = "provider_disabled"
)

// Party is who must act on a problem.
type Party string

// The parties.
const (
	PartyProvider Party = "provider" // the provider, or who runs it
	PartyOperator Party = "operator" // who runs this installation
)

// Problem is one reason for which a provider's call fails.
type Problem struct {
	Reason string
	Kind   schema.Kind
	Acts   Party
	// Means and Next describe the cause and the next step in one sentence each.
	Means, Next string
}

// Problems lists the reasons.
func Problems() []Problem {
	const refused, unavailable = schema.KindProviderRefused, schema.KindServiceUnavailable
	return []Problem{
		{ReasonQuota, refused, PartyOperator, "The quota of the account at the provider is used up.", "Raise the quota, or remove machines, then retry."},
		{ReasonCapacity, refused, PartyProvider, "The provider has no free machine of this type.", "Wait and retry, or cancel and provision another type or region."},
		{ReasonAuth, refused, PartyOperator, "The provider rejects the credentials of the worker, or the worker has none.", "Correct the provider's credentials, then retry."},
		{ReasonRejected, refused, PartyOperator, "The provider rejects the request.", "Correct what the message names, then retry, or cancel."},
		{ReasonImage, refused, PartyOperator, "The image of the machine does not exist.", "Build or publish the image with the command of the message, then retry."},
		{ReasonMissing, schema.KindNotFound, PartyOperator, "The provider has no machine of this instance.", "Check the provider's list of machines, then retry or cancel."},
		{ReasonUnavailable, unavailable, PartyProvider, "The provider does not respond.", "Check the provider's API, then retry."},
		{ReasonAmbiguous, unavailable, PartyProvider, "It is not known whether the provider did what was asked.", "Retry: the provider is asked for the machine first."},
		{ReasonPerson, refused, PartyOperator, "The provider cannot do this without a person.", "Do what the message says, then retry."},
		{ReasonUnsupported, refused, PartyOperator, "The provider cannot do this.", "Use another provider, or do it by hand."},
		{ReasonFailed, refused, PartyProvider, "The provider reports that the machine failed.", "Read the message and the console, then cancel and provision again."},
		{ReasonStarting, unavailable, PartyProvider, "The machine is not running yet.", "Check the machine at its provider, then retry or cancel."},
		{ReasonDeleting, unavailable, PartyProvider, "The machine is not deleted yet.", "Check the machine at its provider, then retry."},
		{ReasonDisabled, refused, PartyOperator, "The provider is switched off.", "Enable it in the settings of the worker, then retry."},
	}
}

// Errorf returns the error of a provider's call with a reason of Problems. The message must
// not hold a secret.
func Errorf(reason, format string, args ...any) *schema.Error {
	p, ok := ProblemOf(reason)
	if !ok {
		p.Kind = schema.KindInternal
	}
	return schema.NewError(p.Kind, format, args...).WithReason(reason).WithNext(p.Next)
}

// Wrap is Errorf with a cause, which is only logged.
func Wrap(reason string, cause error, format string, args ...any) *schema.Error {
	e := Errorf(reason, format, args...)
	e.Err = cause
	return e
}

// Is reports whether err is a provider's error with the reason.
func Is(err error, reason string) bool {
	e := schema.AsError(err)
	return e != nil && e.Reason == reason
}

// ProblemOf returns the problem with the reason. ok is false if the reason is none of a
// provider's call.
func ProblemOf(reason string) (p Problem, ok bool) {
	for _, p := range Problems() {
		if p.Reason == reason {
			return p, true
		}
	}
	return Problem{}, false
}
