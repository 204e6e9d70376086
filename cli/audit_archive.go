package cli

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/gpuaas/gpuaas/schema/audit"
)

// auditArchive is what audit --verify has of the archived rows.
type auditArchive struct {
	files map[string]string       // SHA-256 by name
	last  map[string]*audit.Event // the last archived row of each stream
	cuts  []audit.Head            // the last deleted row of each stream
	// through is the last checkpoint that the trail says is archived.
	through int64
}

// readArchive verifies the files of --archive up to the first fault: their checkpoints, the
// chains of their rows, and that the checkpoints name the rows.
func (v *auditVerification) readArchive() error {
	if v.archiveDir == "" || v.result.Fault != "" {
		return nil
	}
	names, err := filepath.Glob(filepath.Join(v.archiveDir, "audit-*.jsonl"))
	if err != nil || len(names) == 0 {
		return usagef("gpuaas audit", "--archive: the folder %s has no file of an archive", v.archiveDir)
	}
	slices.Sort(names)
	v.archive.files, v.archive.last = map[string]string{}, map[string]*audit.Event{}
	for _, name := range names {
		if err := readFile(name, func(r io.Reader) error {
			hash := sha256.New()
			_, err := io.Copy(hash, r)
			v.archive.files[filepath.Base(name)] = hex.EncodeToString(hash.Sum(nil))
			return err
		}); err != nil {
			return usagef("gpuaas audit", "--archive: %v", err)
		}
	}
	var last audit.Checkpoint
	for _, name := range names {
		if err := readFile(name, func(r io.Reader) error {
			last = v.archiveLines(filepath.Base(name), json.NewDecoder(r), last)
			return nil
		}); err != nil {
			return usagef("gpuaas audit", "--archive: %v", err)
		}
	}
	return nil
}

func readFile(name string, read func(io.Reader) error) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // read-only
	return read(bufio.NewReaderSize(f, 1<<16))
}

// archiveLines verifies the lines of a file whose checkpoints follow last, and returns its
// last checkpoint.
func (v *auditVerification) archiveLines(name string, lines *json.Decoder, last audit.Checkpoint) audit.Checkpoint {
	for v.result.Fault == "" {
		var line audit.ArchiveLine
		err := lines.Decode(&line)
		if errors.Is(err, io.EOF) {
			return last
		}
		switch e := line.Event; {
		case v.fault(err != nil, "the file %s of the archive is damaged", name):
		case line.Checkpoint != nil && !v.lost(name, *line.Checkpoint):
			last = v.checkpoint(*line.Checkpoint, last)
		case e != nil && !v.event(e.Stream, v.archive.last[e.Stream], *e):
			v.archive.last[e.Stream] = e
			v.result.ArchivedRows++
		}
	}
	return last
}

// lost reports a signed checkpoint of a file that the database does not have. The database
// keeps all of its own.
func (v *auditVerification) lost(name string, c audit.StoredCheckpoint) bool {
	signed, err := audit.ParseCheckpoint(c.Signed)
	if err != nil || !signed.Verify(signed.Env, v.keys) {
		return false
	}
	return v.fault(v.stored[signed.Number] != signed.Hash, "the file %s of the archive has checkpoint %d, which the database does not have: "+
		"the database was restored to an earlier time, or its trail was replaced", name, signed.Number)
}

// base returns the last row of a stream that is no longer in the database, as a checkpoint
// names it, nil if none does.
func (v *auditVerification) base(stream string, seq int64) *audit.Event {
	c, ok := v.covered[stream][seq]
	if !ok {
		return nil
	}
	v.result.CutStreams++
	v.archive.cuts = append(v.archive.cuts, audit.Head{Stream: stream, Seq: c.checkpoint})
	last := v.archive.last[stream]
	v.fault(v.archiveDir != "" && (last == nil || last.Seq < seq), "audit stream %s: the rows up to %d are neither in the database nor in the archive", stream, seq)
	return &audit.Event{Stream: stream, Seq: seq, Hash: c.hash}
}

// noteArchived checks a row that says what was archived.
func (v *auditVerification) noteArchived(e audit.Event) {
	if e.Stream != audit.SystemStream || e.Action != audit.Archived {
		return
	}
	through, _ := strconv.ParseInt(e.Detail["last_checkpoint"], 10, 64) // 0 archives nothing
	v.archive.through = max(v.archive.through, through)
	v.fault(v.archiveDir != "" && v.archive.files[e.Detail["file"]] != e.Detail["sha256"],
		"the file %s of the archive is missing or has another content than the trail says", e.Detail["file"])
}

// checkCuts checks that the trail says that the deleted rows were archived.
func (v *auditVerification) checkCuts() {
	for _, c := range v.archive.cuts {
		v.fault(v.node == nil && c.Seq > v.archive.through, "audit stream %s: rows are missing that were not archived", c.Stream)
	}
}
