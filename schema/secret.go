package schema

import (
	"errors"
	"fmt"
	"log/slog"
)

// Secret is text that must not leave by accident: printing, encoding or logging
// it fails or shows nothing. Reveal is the one way out, and easy to search for.
type Secret struct{ text string }

// NewSecret keeps text.
func NewSecret(text string) Secret { return Secret{text} }

// Reveal returns the text. Call it where the secret is handed over, nowhere
// else.
func (s Secret) Reveal() string { return s.text }

// Empty reports whether there is no text.
func (s Secret) Empty() bool { return s.text == "" }

// ErrSecret is returned by every encoding of a Secret.
var ErrSecret = errors.New("a secret must not be encoded")

const hidden = "[secret]"

// String, GoString and Format show that a secret is there and nothing of it.
func (s Secret) String() string { return hidden }

// GoString implements fmt.GoStringer.
func (s Secret) GoString() string { return hidden }

// Format implements fmt.Formatter for every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, hidden) }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalJSON fails, so that a leak fails the call that would have leaked.
func (s Secret) MarshalJSON() ([]byte, error) { return nil, ErrSecret }

// MarshalText fails.
func (s Secret) MarshalText() ([]byte, error) { return nil, ErrSecret }

// MarshalBinary fails.
func (s Secret) MarshalBinary() ([]byte, error) { return nil, ErrSecret }

// GobEncode fails.
func (s Secret) GobEncode() ([]byte, error) { return nil, ErrSecret }
