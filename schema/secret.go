package schema

import (
	"errors"
	"fmt"
	"log/slog"
)

// Secret is text that must not leak: printing or logging it shows nothing, and
// encoding it fails. Only Reveal returns the text, so that its uses are easy to
// find.
type Secret struct{ text string }

// NewSecret returns a secret that holds text.
func NewSecret(text string) Secret { return Secret{text} }

// Reveal returns the text. Call it only where the secret leaves the process.
func (s Secret) Reveal() string { return s.text }

// Empty reports whether there is no text.
func (s Secret) Empty() bool { return s.text == "" }

// ErrSecret is returned by every encoding of a Secret.
var ErrSecret = errors.New("a secret must not be encoded")

const hidden = "[secret]"

// String and Format return a placeholder.
func (s Secret) String() string { return hidden }

// Format implements fmt.Formatter for every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, hidden) }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText fails, so that the call that would leak the secret fails: JSON, XML
// and YAML encoders use it.
func (s Secret) MarshalText() ([]byte, error) { return nil, ErrSecret }

// MarshalBinary fails, for package gob.
func (s Secret) MarshalBinary() ([]byte, error) { return nil, ErrSecret }
