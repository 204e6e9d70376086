package workflows

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// carriedFields has each field of an operation that a renewal passes on, and its field of
// Carried.
func carriedFields() map[string]string {
	return map[string]string{
		"status": "Status", "claim": "Claim", "plan": "Claim", "phase": "Phase", "undoing": "Undoing", "lastStep": "LastStep",
		"tries": "Tries", "undoBegan": "UndoBegan", "forced": "Forced", "adopted": "Adopted",
		"facts": "Facts", "repair": "Repair", "taskUntil": "TaskUntil", "returns": "Returns", "unrecorded": "Unrecorded", "goalReached": "AwaitsGoal",
		"enrolled": "Enrolled", "currentStep": "CurrentStep", "returned": "Returned", "decided": "Decided",
	}
}

// freshFields has each other field of an operation, and why the new run does not need it.
func freshFields() map[string]string {
	return map[string]string{
		"in":          "the input of the new run is the same",
		"answered":    "always set after the claim",
		"refused":     "a rejected operation ends",
		"closed":      "a parked operation accepts decisions",
		"unwritten":   "a renewal waits until all writes are stored",
		"fence":       "a fenced run ends",
		"machineSeen": "the park in the status has it",
		"failed":      "the status has the failure for which the operation is parked",
		"parks":       "the ID of a park names the run",
		"published":   "always set while the operation is parked",
		"resumed":     "set by the renewal itself",
		"interrupt":   "no attempt runs",
		"decision":    "a renewal waits until no decision is pending",
		"applied":     "a parked operation applies no decision",
		"updates":     "counts those of one run",
		"runBefore":   "the status of the run before has its ID",
		"announced":   "the new run reads the record when it enters the phase again",
		"reads":       "counts those of one run",
		"latestRead":  "the reads of the run before have ended",
		"leftUndone":  "an undo that is left ends the operation",
		"following":   "the new run starts its own reader",
	}
}

// TestCarriedIsComplete: each field of an operation is passed on by a renewal, or listed
// with the reason why not.
func TestCarriedIsComplete(t *testing.T) {
	t.Parallel()
	known, carried := map[string]bool{}, map[string]bool{}
	for _, of := range []any{operation{}, state{}, decisions{}, inbox{}} {
		for _, f := range reflect.VisibleFields(reflect.TypeOf(of)) {
			if f.Anonymous {
				continue
			}
			known[f.Name] = true
			as, reason := carriedFields()[f.Name], freshFields()[f.Name]
			require.NotEqual(t, as == "", reason == "", "field %s: list it once, as carried or as not carried", f.Name)
			carried[as] = true
		}
	}
	for f := range carriedFields() {
		require.True(t, known[f], "an operation has no field %s", f)
	}
	for f := range freshFields() {
		require.True(t, known[f], "an operation has no field %s", f)
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Carried]()) {
		require.True(t, carried[f.Name], "Carried.%s is of no field", f.Name)
	}
}

// TestCarriedRoundTrip: what a renewal restores is what the next renewal passes on.
func TestCarriedRoundTrip(t *testing.T) {
	t.Parallel()
	var c Carried
	fill(reflect.ValueOf(&c).Elem())
	s := &state{status: lifecycle.OperationStatus{Operation: lifecycle.Operation{RunID: c.Status.Operation.RunID}}}
	op := &operation{state: s, decisions: decisions{state: s}, inbox: inbox{state: s, returned: map[string]bool{}}}
	c.restore(op)
	require.Equal(t, &c, carry(op))
}

// fill sets every field to a value that is not its zero value.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString("x")
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	case reflect.Float64:
		v.SetFloat(1)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(1, 0).UTC()))
			return
		}
		for _, f := range v.Fields() {
			fill(f)
		}
	default:
		panic("a field of kind " + v.Kind().String())
	}
}
