package cli

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/gpuaas/gpuaas/api/client/adminclient"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// auditResult is the output of audit --verify.
type auditResult struct {
	Verified    bool   `json:"verified"`
	Rows        int    `json:"rows"` // valid rows before the fault
	Streams     int    `json:"streams"`
	Checkpoints int    `json:"checkpoints"`
	Newest      string `json:"newest_checkpoint,omitempty"`
	// ArchivedRows are the valid rows in the files of --archive, and CutStreams the streams
	// whose first rows are archived and no longer in the database.
	ArchivedRows int    `json:"archived_rows,omitempty"`
	CutStreams   int    `json:"cut_streams,omitempty"`
	Fault        string `json:"fault,omitempty"`
}

// auditVerification is one run of audit --verify.
type auditVerification struct {
	api            *adminclient.Client
	node           *string
	known, keyFile string
	archiveDir     string

	result auditResult
	keys   map[string]ed25519.PublicKey
	stored map[int64]string // the hashes of the checkpoints in the database, by number
	// covered are the rows of each stream that checkpoints name, by seq.
	covered map[string]map[int64]coveredRow
	archive auditArchive
}

// coveredRow is a row that a checkpoint names.
type coveredRow struct {
	hash       string
	checkpoint int64
}

func runAuditVerify(ctx context.Context, e *env, v *auditVerification) error {
	v.covered, v.stored = map[string]map[int64]coveredRow{}, map[int64]string{}
	// Before the streams, so that they have every row that a checkpoint covers.
	if err := v.checkpoints(ctx); err != nil {
		return err
	}
	if err := v.readArchive(); err != nil {
		return err
	}
	if err := v.streams(ctx); err != nil {
		return err
	}
	v.result.Verified = v.result.Fault == ""
	err := e.print(v.result, func(w io.Writer) {
		what := fmt.Sprintf("%s of %s and %s", text.Count(v.result.Rows, "row"), text.Count(v.result.Streams, "stream"), text.Count(v.result.Checkpoints, "checkpoint"))
		if !v.result.Verified {
			row(w, "FAULT after "+what+": "+v.result.Fault)
			return
		}
		fmt.Fprintf(w, "verified %s: no faults found\n", what)
		if v.result.ArchivedRows > 0 {
			row(w, "verified "+text.Count(v.result.ArchivedRows, "archived row"))
		}
		if v.result.CutStreams > 0 && v.archiveDir == "" {
			row(w, "the first rows of "+text.Count(v.result.CutStreams, "stream")+" are archived: verify them with --archive DIR")
		}
		if v.result.Newest != "" {
			row(w, "newest checkpoint: "+v.result.Newest)
		}
	})
	if err == nil && !v.result.Verified {
		err = &exitError{schema.ExitFailed, []string{"the audit trail was changed or is incomplete: do not change the database, and investigate"}}
	}
	return err
}

// fault records the first fault and reports whether there is one.
func (v *auditVerification) fault(bad bool, format string, args ...any) bool {
	if bad && v.result.Fault == "" {
		v.result.Fault = fmt.Sprintf(format, args...)
	}
	return v.result.Fault != ""
}

// checkpoints verifies the chain of checkpoints up to the first fault, and collects what
// they cover.
func (v *auditVerification) checkpoints(ctx context.Context) error {
	var err error
	if v.keys, err = readCheckpointKeys(v.keyFile); err != nil {
		return err
	}
	known, found := audit.Checkpoint{}, v.known == ""
	if !found {
		if known, err = audit.ParseCheckpoint(v.known); err != nil {
			return usagef("gpuaas audit", "--known-checkpoint: %v", err)
		}
	}
	var last audit.Checkpoint
	for {
		limit := auditPage
		page, err := decode[audit.CheckpointPage](v.api.ListAuditCheckpoints(ctx, &adminclient.ListAuditCheckpointsParams{After: &last.Number, Limit: &limit}))
		if err != nil {
			return err
		}
		if v.keyFile == "" {
			v.keys = page.Keys
		}
		for _, c := range page.Checkpoints {
			if last = v.checkpoint(c, last); v.result.Fault != "" {
				return nil
			}
			v.stored[last.Number] = last.Hash
			v.result.Checkpoints++
			found = found || last.Number == known.Number && last.Hash == known.Hash
		}
		if !page.More || len(page.Checkpoints) == 0 {
			break
		}
	}
	v.fault(!found, "checkpoint %d of %s is missing, or another one has its number", known.Number, known.At)
	if last.Number > 0 {
		v.result.Newest = last.String()
	}
	return nil
}

// checkpoint verifies a checkpoint that follows last, and returns it.
func (v *auditVerification) checkpoint(c audit.StoredCheckpoint, last audit.Checkpoint) audit.Checkpoint {
	body, signed, err := c.Next(last.Number, last.Hash, v.keys)
	if v.fault(err != nil, "%v", err) {
		return last
	}
	for _, h := range body.Heads {
		if v.covered[h.Stream] == nil {
			v.covered[h.Stream] = map[int64]coveredRow{}
		}
		other, ok := v.covered[h.Stream][h.Seq]
		v.fault(ok && other.hash != h.Hash, "audit stream %s: two checkpoints have different hashes of row %d", h.Stream, h.Seq)
		v.covered[h.Stream][h.Seq] = coveredRow{h.Hash, signed.Number}
	}
	return signed
}

// streams verifies the streams up to the first fault.
func (v *auditVerification) streams(ctx context.Context) error {
	streams, err := auditStreams(ctx, v.api, v.node)
	if err != nil {
		return err
	}
	for _, s := range streams {
		if v.result.Fault != "" {
			return nil
		}
		v.result.Streams++
		if err := v.stream(ctx, s); err != nil {
			return err
		}
		delete(v.covered, s)
	}
	for s := range v.covered {
		v.fault(v.node == nil, "audit stream %s is missing: a checkpoint covers it", s)
	}
	v.checkCuts()
	return nil
}

// auditStreams is the stream of one node, or every stream.
func auditStreams(ctx context.Context, api *adminclient.Client, node *string) ([]string, error) {
	switch {
	case node == nil:
		return pages(0, func(size *int, token *string) ([]string, string, error) {
			list, err := decode[wire.AuditStreamList](api.ListAuditStreams(ctx, &adminclient.ListAuditStreamsParams{Limit: size, PageToken: token}))
			return list.Streams, list.NextPageToken, err
		})
	case *node == audit.SystemStream || schema.IsID(*node):
		return []string{*node}, nil
	}
	view, err := decode[wire.NodeView](api.GetNode(ctx, *node, nil))
	return []string{view.ID}, err
}

// stream checks one stream page by page up to the first fault: its chain, the head that
// the database keeps, and the rows that checkpoints cover.
func (v *auditVerification) stream(ctx context.Context, stream string) error {
	var last *audit.Event
	after, limit := int64(0), auditPage
	for {
		page, err := decode[wire.AuditStreamPage](v.api.ReadAuditStream(ctx, stream, &adminclient.ReadAuditStreamParams{After: &after, Limit: &limit}))
		if err != nil {
			return err
		}
		for _, event := range page.Events {
			if last == nil && event.Seq > 1 {
				last = v.base(stream, event.Seq-1)
			}
			if v.event(stream, last, event) {
				return nil
			}
			v.fault(event.Seq == page.HeadSeq && event.Hash != page.HeadHash, "audit stream %s: row %d is not the one of the stream's head", stream, event.Seq)
			last = &event
			v.result.Rows++
		}
		if !page.More || len(page.Events) == 0 {
			v.end(stream, last, page)
			return nil
		}
		if last.Seq <= after {
			return schema.NewError(schema.KindInternal, "audit stream %s: the admin API returned row %d again after row %d", stream, last.Seq, after)
		}
		after = last.Seq
	}
}

// event checks the row that follows last and reports a fault.
func (v *auditVerification) event(stream string, last *audit.Event, event audit.Event) (faulty bool) {
	if v.fault(event.Stream != stream, "audit stream %s: row %d belongs to stream %s", stream, event.Seq, event.Stream) {
		return true
	}
	if err := audit.VerifyChain(last, []audit.Event{event}); err != nil {
		return v.fault(true, "%v", err)
	}
	v.noteArchived(event)
	c, covered := v.covered[stream][event.Seq]
	return v.fault(covered && c.hash != event.Hash, "audit stream %s: row %d was replaced: a checkpoint has another hash", stream, event.Seq)
}

// end checks that the stream ends at its head, and after all rows that checkpoints cover.
func (v *auditVerification) end(stream string, last *audit.Event, page wire.AuditStreamPage) {
	var seq int64
	if last != nil {
		seq = last.Seq
	}
	v.fault(seq == 0, "audit stream %s has no rows", stream)
	v.fault(seq < page.HeadSeq, "audit stream %s: the rows after %d are missing: the stream's head is %d", stream, seq, page.HeadSeq)
	v.fault(page.HeadSeq == 0, "audit stream %s has no head", stream)
	for covered := range v.covered[stream] {
		v.fault(covered > seq, "audit stream %s: the rows after %d are missing: a checkpoint covers row %d", stream, seq, covered)
	}
}

// readCheckpointKeys reads the keys of checkpoints from the output of vault read, none
// without a file.
func readCheckpointKeys(file string) (map[string]ed25519.PublicKey, error) {
	if file == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(file)
	var key struct {
		Data struct {
			Name string `json:"name"`
			Keys map[string]struct {
				Public []byte `json:"public_key"`
			} `json:"keys"`
		} `json:"data"`
	}
	if err == nil {
		err = json.Unmarshal(raw, &key)
	}
	if err != nil {
		return nil, usagef("gpuaas audit", "--checkpoint-keys: %v", err)
	}
	keys := map[string]ed25519.PublicKey{}
	for version, k := range key.Data.Keys {
		if len(k.Public) == ed25519.PublicKeySize {
			keys[key.Data.Name+".v"+strings.TrimSpace(version)] = k.Public
		}
	}
	return keys, nil
}

// runAcceptAuditGap accepts that checkpoints are missing.
func runAcceptAuditGap(ctx context.Context, e *env, api *adminclient.Client, reason string) error {
	gap, err := decode[audit.Gap](api.AcceptAuditGap(ctx, nil, audit.Gap{Reason: reason}))
	if err != nil {
		return err
	}
	return e.print(gap, func(w io.Writer) {
		fmt.Fprintf(w, "accepted that %s are missing\n", text.Count(int(gap.Checkpoints), "checkpoint"))
	})
}
