package audit

import (
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// MaxArchiveEvents is the number of events after which a file of the archive ends with its
// checkpoint, also in the middle of a day.
const MaxArchiveEvents = 50_000

// ArchivePart is what the next file of the archive contains: signed checkpoints of one day
// (UTC) that follow each other, and the events that they cover. The same part of the same
// trail is the same file, byte for byte.
type ArchivePart struct {
	// After is the checkpoint before the first one and AfterHash its hash; 0 and "" if the
	// first one is the first of all.
	After     int64
	AfterHash string
	// Previous is the file with the checkpoint After, without a name if there is none.
	Previous    ArchiveFile
	Checkpoints []StoredCheckpoint
	// Segments are the parts of streams, by stream.
	Segments []ArchiveSegment
}

// ArchiveSegment is a part of a stream: the events after From up to that of Head.
type ArchiveSegment struct {
	From Head // Seq is 0 at the start of the stream
	Head Head
}

// ArchiveFile is a file of the archive. Its lines are ArchiveLines: first the checkpoints, then
// the events of each stream.
type ArchiveFile struct {
	After, Last int64 // numbers of checkpoints
	Name        string
	SHA256      string // hex, of the content
	Events      int64
}

// ArchiveLine is a line of a file, in JSON. One of its fields is set.
type ArchiveLine struct {
	Checkpoint *StoredCheckpoint `json:"checkpoint,omitempty"`
	Event      *Event            `json:"event,omitempty"`
}

// Cut says up to which event a stream may be deleted, with the file that has that event.
type Cut struct {
	Stream string
	Seq    int64
	File   ArchiveFile
}

// ArchiveName returns the name of a file. The names are in the order of the checkpoints.
func ArchiveName(day time.Time, after, last int64) string {
	return fmt.Sprintf("audit-%012d-%012d-%s.jsonl", after+1, last, day.UTC().Format(time.DateOnly))
}

// Next verifies a stored checkpoint that follows another one, whose number and hash are
// given, and returns its body and its signed form.
func (c StoredCheckpoint) Next(number int64, hash string, keys map[string]ed25519.PublicKey) (body CheckpointBody, signed Checkpoint, err error) {
	body, signed, err = c.Link(number, hash)
	if err == nil && !signed.Verify(signed.Env, keys) {
		err = fmt.Errorf("checkpoint %d has no valid signature", signed.Number)
	}
	return body, signed, err
}

// Link is Next without a check of the signature, for which the keys are not available.
func (c StoredCheckpoint) Link(number int64, hash string) (body CheckpointBody, signed Checkpoint, err error) {
	signed, err = ParseCheckpoint(c.Signed)
	if err == nil {
		err = json.Unmarshal(c.Body, &body)
	}
	switch {
	case err != nil:
		return body, signed, fmt.Errorf("the checkpoint after %d cannot be parsed", number)
	case signed.Number <= number || body.Number != signed.Number:
		return body, signed, fmt.Errorf("checkpoint %d is out of order", signed.Number)
	case schema.SHA256Hex(c.Body) != signed.Hash:
		return body, signed, fmt.Errorf("checkpoint %d was changed after it was signed", signed.Number)
	case body.Prev != hash:
		return body, signed, fmt.Errorf("checkpoint %d does not follow checkpoint %d: one between them is missing", signed.Number, number)
	}
	return body, signed, nil
}
