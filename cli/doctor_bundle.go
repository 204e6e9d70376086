package cli

import (
	"archive/zip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/gpuaas/gpuaas/api/client/adminclient"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/evidence"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/secrets"
)

// newEvidenceFile opens the file of a bundle, nil for none. It replaces no file: the evidence of
// an earlier time may not exist a second time.
func newEvidenceFile(path string) (*secretFile, error) {
	if _, err := os.Lstat(path); path != "" && err == nil {
		return nil, schema.NewError(schema.KindInvalidRequest, "--bundle: %s exists", path).WithNext("name a file that does not exist")
	}
	return newSecretFile(path)
}

// evidenceRows is how many operations, tasks, signals, decisions and audit events a bundle has at most.
const evidenceRows = 200

// writeEvidence writes the bundle without secrets, although the admin API returns none: an operator
// may have typed one into a reason. What cannot be read is named in it.
func writeEvidence(ctx context.Context, e *env, out *secretFile, ev nodeEvidence) (err error) {
	var packed strings.Builder
	archive, scan := zip.NewWriter(&packed), secrets.New()
	add := func(name string, v any, readErr error) {
		if readErr != nil {
			v = map[string]string{"error": readErr.Error()}
		}
		part, createErr := archive.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Deflate, Modified: e.clock.now()})
		if createErr == nil {
			var raw []byte
			if raw, createErr = json.MarshalIndent(v, "", "  "); createErr == nil {
				_, createErr = part.Write(append(scan.Redact(raw), '\n'))
			}
		}
		err = errors.Join(err, createErr)
	}
	api, node := e.api(), ev.Node.ID
	add("doctor.json", ev.Report, nil)
	add("node.json", ev.Node, nil)
	add("control-plane.json", ev.Stuck.Faults, nil)
	if ev.Cause != nil {
		add("cause.json", ev.Cause, nil)
	}
	add("refusals.json", append([]audit.Row{}, ev.Refusals...), nil)
	entries, readErr := history(ctx, api, node, nil, evidenceRows)
	add("history.json", entries, readErr)
	tasks, readErr := listTasks(ctx, api, adminclient.ListTasksParams{Node: &node, All: new(true)}, evidenceRows)
	add("tasks.json", tasks, readErr)
	events, readErr := listAudit(ctx, api, adminclient.ListAuditParams{Node: &node}, evidenceRows)
	add("audit.json", events, readErr)
	signals, readErr := listSignals(ctx, api, node, adminclient.ListNodeSignalsParams{}, evidenceRows)
	add("signals.json", signals, readErr)
	decisions, readErr := listDecisions(ctx, api, adminclient.ListRecoveryDecisionsParams{Node: &node}, evidenceRows)
	add("decisions.json", decisions, readErr)
	if rma, readErr := decode[evidence.Bundle](api.GetEvidence(ctx, node, nil)); schema.KindOf(readErr) != schema.KindNotFound { // no repair ended without a cure
		add("rma.json", rma, readErr)
	}
	keys, readErr := decode[json.RawMessage](api.GetTrust(ctx, nil))
	add("trust.json", keys, readErr)
	turn, readErr := decode[rotation.View](api.GetRotation(ctx, nil))
	add("rotation.json", turn, readErr)
	if commands, createErr := archive.CreateHeader(&zip.FileHeader{Name: "commands.txt", Method: zip.Deflate, Modified: e.clock.now()}); createErr != nil {
		err = errors.Join(err, createErr)
	} else if _, writeErr := commands.Write([]byte(controlPlaneEvidence(ev.Node))); writeErr != nil {
		err = errors.Join(err, writeErr)
	}
	if err = errors.Join(err, archive.Close()); err != nil {
		return fmt.Errorf("packing %s: %w", out.path, err)
	}
	if err := out.write(packed.String()); err != nil {
		return err
	}
	e.message("evidence written to %s", out.path)
	return nil
}
