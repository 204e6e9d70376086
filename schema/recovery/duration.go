package recovery

import (
	"fmt"
	"strings"
	"time"
)

// Duration is a duration in a policy, as text: "90s", "10m", "168h".
type Duration time.Duration

// String returns the duration without units that are zero: "10m", not "10m0s".
func (d Duration) String() string { return brief(time.Duration(d)) }

// MarshalText returns the duration as String does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText sets the duration from its text.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%.40q is not a duration: write for example \"10m\" or \"168h\"", text)
	}
	*d = Duration(v)
	return nil
}

// brief returns a duration for people and documents.
func brief(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}
