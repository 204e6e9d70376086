package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each action of a workflow is pinned by a commit, with its version in a comment: a tag can be moved.
func TestActionsArePinned(t *testing.T) {
	t.Parallel()
	pinned := regexp.MustCompile(`uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
	names, err := filepath.Glob(filepath.Join(root, ".github", "workflows", "*.yml"))
	require.NoError(t, err)
	require.NotEmpty(t, names)
	for _, name := range names {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "uses: ") {
				assert.Regexp(t, pinned, strings.TrimSpace(line), filepath.Base(name))
			}
		}
	}
}

// The notes of a release are its section of the changelog.
func TestReleaseNotes(t *testing.T) {
	t.Parallel()
	script, err := filepath.Abs(filepath.Join(root, "tools", "release-notes.sh"))
	require.NoError(t, err)
	dir := t.TempDir()
	write(t, dir, "CHANGELOG.md", "# Changelog\n\n## Unreleased\n\n- next\n\n## [1.2.3] - 2026-03-01\n\n- dots\n\n## v1.2.0\n\n- old\n")
	for tag, want := range map[string]string{"v1.2.3": "- dots", "v1.2.3-rc.1": "- dots", "v1.2.0": "- old", "v1.3.0-rc.1": "- next", "v1.3.0": "", "v1.2": ""} {
		c := exec.CommandContext(t.Context(), "sh", script, tag)
		c.Dir = dir
		out, err := c.Output()
		assert.Equal(t, want != "", err == nil, tag)
		assert.Equal(t, want, strings.TrimSpace(string(out)), tag)
	}
}
