package envfile

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseEnvFile(t *testing.T) {
	t.Parallel()
	vars, err := Parse("# comment\n; too\n\nA=\"x \\\"y\\\" \\\\ z\"\n B = plain text \nC='as $is \\n'\nD=\nE=\"\"\nA_1=last\nA_1=\"wins\"\r\n")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"A": `x "y" \ z`, "B": "plain text", "C": `as $is \n`, "D": "", "E": "", "A_1": "wins"}, vars)
}

func TestParseEnvFileFaults(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"novalue", "1A=x", "=x", "A B=x", `A="open`, `A="x" y`, "A='open", "A='a'b'", "A=\x00", `A="\x00"`} {
		_, err := Parse("OK=1\n" + text)
		require.ErrorContains(t, err, "line 2", text)
	}
	_, err := Parse("TOKEN=\"secretsecret")
	require.Error(t, err)
	require.NotContains(t, err.Error(), "secretsecret")
}

func FuzzParseEnvFile(f *testing.F) {
	for _, s := range []string{"A=1", `A="\u00e9\n"`, "A='x'", "# c\nA=\"", "A=\"\\", "\xff=\xfe"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		vars, err := Parse(text)
		if err != nil {
			return
		}
		var back strings.Builder
		for k, v := range vars {
			require.True(t, validKey.MatchString(k))
			require.NotContains(t, v, "\x00")
			fmt.Fprintf(&back, "%s=%q\n", k, v)
		}
		again, err := Parse(back.String())
		require.NoError(t, err)
		require.Equal(t, vars, again)
	})
}

func TestSetEnvValue(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, want string }{
		"empty":    {"", "K=\"v\"\n"},
		"replaced": {"# K=x\nA=1\nK='old'\nB=2\n", "# K=x\nA=1\nK=\"v\"\nB=2\n"},
		"twice":    {"K=1\nA=1\n K = 2\n", "K=\"v\"\nA=1\n"},
		"no end":   {"A=1", "A=1\nK=\"v\"\n"},
		"longer":   {"KK=1\n", "KK=1\nK=\"v\"\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, Set(c.text, "K", "v"))
		})
	}
}
