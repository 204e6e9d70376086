package trust

import "time"

// The reasons of an identity lock.
const (
	// LockedByOperator: an operator locked the identity and may unlock it.
	LockedByOperator = "operator"
	// LockedBySerial: a certificate was used after its successor.
	LockedBySerial = "superseded_serial"
	// LockedBySequence: a renewal or recovery continued an outdated identity.
	LockedBySequence = "sequence_behind"
	// LockedBySessions: two agent processes poll in turn.
	LockedBySessions = "sessions_alternate"
	// LockedByToken: the machine that was the node before presented a reissue token that
	// another machine had claimed.
	LockedByToken = "token_claimed_by_another"
)

// The reasons of an identity alarm, which rejects no request. An alarm is not replaced by one
// that proves less.
const (
	// AlarmSession: an agent process polled after a newer one had polled for a while.
	AlarmSession = "session_returned"
	// AlarmToken: a token was presented with another key than the one that claimed it.
	AlarmToken = "token_claimed"
	// AlarmProcesses: more agent processes polled in a short time than one machine starts,
	// unless its agent restarts in a loop.
	AlarmProcesses = "many_processes"
)

// AlarmAge is how long an alarm is shown.
const AlarmAge = 24 * time.Hour

// SessionGap is the least time between the two returns of an agent process that prove that
// it still runs beside a newer one. The delayed polls of a process that has ended arrive
// together.
const SessionGap = 15 * time.Second

// IdentityLock records when and why a node's identity was locked.
type IdentityLock struct {
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
	// By is the operator who locked it, Note the reason that they gave. Both are empty if
	// the server locked it.
	By   string `json:"by,omitempty"`
	Note string `json:"note,omitempty"`
}

// IdentityAlarm records when and why a second machine was suspected to use a node's
// identity or token.
type IdentityAlarm struct {
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
}

// Message describes the lock, as the continuation of a node's name and a colon.
func (l IdentityLock) Message() string {
	switch l.Reason {
	case LockedByOperator:
		return "its identity is locked by " + l.By + ": " + l.Note
	case LockedBySessions:
		return "its identity is locked: two agent processes poll in turn, so two machines use it"
	case LockedByToken:
		return "its identity is locked: another machine claimed its reissue token first"
	}
	return "its identity is locked: it is in use on two machines"
}

// Next is the command that ends the lock.
func (l IdentityLock) Next(host string) string {
	if l.Reason == LockedByOperator {
		return "gpuaas node unlock " + host + " --reason TEXT"
	}
	return "gpuaas node reissue-enrollment " + host
}

// Replaces returns the reasons of the alarms that prove less.
func (a IdentityAlarm) Replaces() []string {
	switch a.Reason {
	case AlarmSession:
		return []string{AlarmToken, AlarmProcesses}
	case AlarmToken:
		return []string{AlarmProcesses}
	}
	return []string{}
}

// Message describes the alarm, as the continuation of a node's name and a colon.
func (a IdentityAlarm) Message() string {
	switch a.Reason {
	case AlarmToken:
		return "two keys presented its enrollment token, and the first was accepted: the machine that enrolled may be another one"
	case AlarmProcesses:
		return "many agent processes polled in a short time: its agent restarts in a loop, or a second machine uses its identity"
	}
	return "an agent process polled again after a newer one: a second machine may use its identity"
}

// Next is what to do about the alarm.
func (IdentityAlarm) Next(host string) string {
	return "gpuaas audit --node " + host + "; if another machine enrolled: gpuaas node lock " + host +
		" --reason TEXT; if not: gpuaas node unlock " + host + " --reason TEXT"
}
